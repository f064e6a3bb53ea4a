"""A seeded family of wide-area networks to judge re-planning on: published round trips, rates that change.

Sites are regions of `topologies/ibm-cloud-10.yaml`, 10 to 250 ms apart. Links are the shortest ones that keep every
site within two ways out, and none is longer than a detour over others, so that each carries the traffic of its ends.
Each direction has 5 to 40 Mbit/s; what becomes of it in a minute is the network's kind:

    constant    nothing
    wander      about its mean, as an Ornstein–Uhlenbeck process of a third of it
    redraw      drawn anew, all links at once
    drop        the pair that carries most falls to a seventh and comes back; the rest wanders by a twentieth
    fades       single pairs fall to a quarter for a while, one after the other
    lte         as recorded LTE links, scaled up; without a recording, chains of four states

The model is as large as makes a round by tree packing take about ROUND_S.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any, Literal

import networkx as nx
import yaml

from testbed.emulation.network.routing import Routes
from testbed.planning import make_policy, simulate
from testbed.run.view import view_of
from testbed.spec.topology import Topology
from testbed.trace.csv import write_csv
from testbed.trace.generate import Drop, Markov, OrnsteinUhlenbeck, UniformRedraw
from testbed.trace.mahimahi import parse_mahimahi
from testbed.trace.trace import Row, Trace

Kind = Literal["constant", "wander", "redraw", "drop", "fades", "lte"]

REGIONS = Path(__file__).parents[2] / "topologies" / "ibm-cloud-10.yaml"

LEAST_BPS, MOST_BPS = 5e6, 40e6
#: No link is longer.
MOST_RTT_S = 0.250
#: Links for each site, in the mean.
DEGREE = 3.0

#: A round by tree packing, in the simulator, in the mean of these times; and the least and most of a model.
ROUND_S, LOOKED_S = 0.8, (0.0, 20.0, 40.0, 60.0)
LEAST_BYTES, MOST_BYTES = 600_000, 4_000_000

#: A step at speed 1, and the speeds that sites have.
STEP_S = 0.1
SPEEDS = (0.5, 0.7, 1.0, 1.0, 1.5, 2.0)

#: Traces last for so long, and then stay as they are.
DURATION_S = 180.0
#: Of wandering rates.
STEP_OF_TRACE_S, RETURN_S = 1.0, 15.0
DROP, DROP_S = 1 / 7, (15.0, 45.0)
FADE, FADES_S = 1 / 4, (12.0, 24.0)
REDRAW_S = 20.0
LTE_STEP_S = 0.5
LTE_MEAN_BPS = 20e6


@dataclass(frozen=True, slots=True)
class Wan:
    """A network of the family; `recorded` is a folder with packet-delivery files, if there is one.

    With an `rtt_s` that is the round trip of all links, and not the published ones.
    """

    kind: Kind
    sites: int
    seed: int
    recorded: Path | None = None
    rtt_s: float | None = None

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.sites}"

    def write(self, folder: Path) -> dict[str, Any]:
        """The network's files, into `folder`; what an experiment on it says of topology, training and compute."""
        draw = Random(f"{self.name}-{self.seed}")
        topology = self._topology(draw)
        self._traces(draw, topology, folder)
        (folder / "topology.yaml").write_text(yaml.safe_dump(topology, sort_keys=False))
        return {
            "topology": "topology.yaml",
            "train": {"model": "synthetic", "parameters": self._parameters(folder / "topology.yaml")},
            "compute": {"step_time": f"{STEP_S * 1e3:g}ms"},
        }

    def _topology(self, draw: Random) -> dict[str, Any]:
        regions = Topology.load(REGIONS)
        delay_s = {(link.source, link.target): link.state.delay_s for link in regions.links.values()}
        sites = sorted(draw.sample(sorted(regions.sites), self.sites))
        links = _links(sites, delay_s)
        if self.rtt_s is not None:
            delay_s = dict.fromkeys(delay_s, self.rtt_s / 2)
        return {
            "name": self.name,
            "sites": {site: {"workers": 1, "speed": draw.choice(SPEEDS)} for site in sites},
            "lan": {"rate": "1gbit", "delay": "0.1ms"},
            "links": [
                {
                    "between": [a, b],
                    "delay": f"{1e3 * delay_s[a, b]:g}ms",
                    **{way: {"rate": _rate(draw)} for way in ("forward", "backward")},
                }
                for a, b in links
            ],
        }

    def _traces(self, draw: Random, topology: Mapping[str, Any], folder: Path) -> None:
        """Give every link its trace, or its rate where nothing changes."""
        pairs = topology["links"]
        if self.kind == "constant":
            for pair in pairs:
                for way in ("forward", "backward"):
                    pair[way] = {"rate": f"{pair[way]['rate'] / 1e3:g}kbit"}
            return
        busiest = max(pairs, key=lambda pair: min(pair[way]["rate"] for way in ("forward", "backward")))
        faded = draw.sample(range(len(pairs)), len(pairs))
        for number, pair in enumerate(pairs):
            for way in ("forward", "backward"):
                trace = self._trace(draw, pair[way]["rate"])
                if self.kind == "drop" and pair is busiest:
                    trace = Trace(Drop(*DROP_S, DROP).over(trace.rows))
                if self.kind == "fades":
                    begin_s = FADES_S[0] * faded.index(number) % 60
                    trace = Trace(Drop(begin_s, begin_s + FADES_S[1], FADE).over(trace.rows))
                file = f"{'-'.join(pair['between'])}-{way}.csv"
                write_csv(folder / file, trace)
                pair[way] = {"trace": {"file": file, "end": "hold"}}

    def _trace(self, draw: Random, mean_bps: float) -> Trace:
        seed = draw.randrange(2**32)
        if self.kind == "redraw":
            return UniformRedraw(LEAST_BPS, MOST_BPS, REDRAW_S, DURATION_S, seed).trace()
        if self.kind == "lte":
            return _lte(seed, self.recorded)
        spread = 0.05 if self.kind == "drop" else 0.33 if self.kind == "wander" else 0.1
        return OrnsteinUhlenbeck(mean_bps, spread, RETURN_S, STEP_OF_TRACE_S, DURATION_S, seed).trace()

    def _parameters(self, file: Path) -> int:
        """As many as a round of ROUND_S is for."""
        topology = Topology.load(file)
        looked_s = LOOKED_S[:1] if self.kind == "constant" else LOOKED_S
        model_bytes, before = LEAST_BYTES, 0
        for _ in range(3):
            if model_bytes == before:
                break  # it is the least or the most
            seconds = mean(_packed_s(topology, model_bytes, at_s) for at_s in looked_s)
            before, model_bytes = model_bytes, min(max(int(model_bytes * ROUND_S / seconds), LEAST_BYTES), MOST_BYTES)
        return model_bytes // 4


#: The networks of the benchmark: kind and number of sites.
FAMILY: Sequence[tuple[Kind, int]] = (
    ("drop", 5),
    ("wander", 6),
    ("redraw", 6),
    ("constant", 6),
    ("fades", 7),
    ("lte", 5),
    ("drop", 8),
    ("redraw", 4),
)


def _packed_s(topology: Topology, model_bytes: int, at_s: float) -> float:
    """Simulated seconds of a round by tree packing on the network as it is then."""
    states = {name: link.at(at_s) for name, link in topology.links.items()}
    view = view_of(topology, Routes.over(topology), states, model_bytes, 0.0, "declared")
    return simulate(make_policy("packing").plan(view), view).seconds


def _rate(draw: Random) -> float:
    return round(draw.uniform(LEAST_BPS, MOST_BPS), -3)


def _links(sites: Sequence[str], delay_s: Mapping[tuple[str, str], float]) -> list[tuple[str, str]]:
    """The pairs of sites that are joined: a shortest spanning tree, then the shortest others that the routes would
    use, until each site has two and there are DEGREE for each in the mean."""
    pairs = {
        tuple(sorted(pair)): delay
        for pair, delay in delay_s.items()
        if set(pair) <= set(sites) and delay <= MOST_RTT_S / 2
    }
    whole = nx.Graph()
    whole.add_weighted_edges_from((a, b, delay) for (a, b), delay in pairs.items())
    graph = nx.minimum_spanning_tree(whole)
    rest = sorted((pair for pair in pairs if not graph.has_edge(*pair)), key=lambda pair: pairs[pair])
    for a, b in rest:
        wanted = 2 * graph.number_of_edges() < DEGREE * len(sites) or min(graph.degree[a], graph.degree[b]) < 2
        if wanted and pairs[a, b] < nx.shortest_path_length(graph, a, b, weight="weight"):
            graph.add_edge(a, b, weight=pairs[a, b])
    return sorted((min(edge), max(edge)) for edge in graph.edges)


def _lte(seed: int, recorded: Path | None) -> Trace:
    """A minute and more of an LTE link, from anywhere in the recording, scaled up."""
    draw = Random(seed)
    if recorded is None:
        rates = tuple(LTE_MEAN_BPS * part for part in (0.2, 0.6, 1.2, 2.0))
        return Markov.dwelling(rates, 4.0, LTE_STEP_S, DURATION_S, seed).trace()
    files = sorted(recorded.glob("*LTE*"))
    schedule = parse_mahimahi(draw.choice(files).read_text().splitlines())
    whole = schedule.resampled(LTE_STEP_S).trace
    first = draw.randrange(max(len(whole.rows) - int(DURATION_S / LTE_STEP_S), 1))
    rates_bps = [row.rate_bps or 0.0 for row in whole.rows[first : first + int(DURATION_S / LTE_STEP_S)]]
    factor = LTE_MEAN_BPS * len(rates_bps) / sum(rates_bps)
    return Trace(tuple(Row(number * LTE_STEP_S, rate * factor) for number, rate in enumerate(rates_bps)))
