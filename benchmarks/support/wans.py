"""Seeded wide-area networks to judge re-planning on: published round trips, rates that change.

Sites are regions of `topologies/ibm-cloud-10.yaml`, 10 to 250 ms apart. Links are the shortest ones that keep every
site within two ways out, and none is longer than a detour over others, so that each carries the traffic of its ends.
Each direction has 5 to 40 Mbit/s, which change in a minute as the network's kind says:

    constant    rates stay
    wander      about the mean, as an Ornstein–Uhlenbeck process of a third of it
    redraw      drawn again, all links at once
    drop        the pair that carries most falls to a seventh and comes back; the rest wanders by a twentieth
    fades       single pairs fall to a quarter for a while, one after the other
    lte         recorded LTE links, scaled up; without a recording, chains of four states

The model's size makes a round by tree packing take about ROUND_S.

Two classes resemble networks that users have, and are watched for three minutes; their seeds have other sites, too:

    regions     constant links of 9 to 28 Mbit/s, but for two pairs: the one that the first plan sends most over falls
                to an eighth from 41 to 120 s, and another one goes back and forth between 8 and 24 Mbit/s
    cloud       stationary rates with rare excursions, and a cap at each site's egress. All traffic of `london` passes
                the link to `london-hub`, a site without workers; hubs are joined as sites are, by faster links

Lai et al. (HotCloud 2018) and García-Dorado (2017) found clouds to be like the latter.
"""

from __future__ import annotations

from collections import defaultdict
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
from testbed.run.view import declared_view, view_of
from testbed.spec.topology import Topology
from testbed.trace.csv import write_csv
from testbed.trace.generate import Drop, Markov, OrnsteinUhlenbeck, UniformRedraw
from testbed.trace.mahimahi import parse_mahimahi
from testbed.trace.trace import Row, Trace

Kind = Literal["constant", "wander", "redraw", "drop", "fades", "lte", "regions", "cloud"]

#: The value of a topology file.
_Network = dict[str, Any]

TOPOLOGY, WAYS = "topology.yaml", ("forward", "backward")

REGIONS = Path(__file__).parents[2] / "topologies" / "ibm-cloud-10.yaml"

#: A site has two links at least, and there are ten regions.
LEAST_SITES, MOST_SITES = 3, 10

LEAST_BPS, MOST_BPS = 5e6, 40e6
#: The longest round trip of a link.
MOST_RTT_S = 0.250
#: Links per site, on average.
DEGREE = 3.0

#: The simulated time of a round by tree packing, as the mean at these times; and the smallest and largest model.
ROUND_S, LOOKED_S = 0.8, (0.0, 20.0, 40.0, 60.0)
LEAST_BYTES, MOST_BYTES = 600_000, 4_000_000

#: The time of a step at speed 1, and the speeds of sites.
STEP_S = 0.1
SPEEDS = (0.5, 0.7, 1.0, 1.0, 1.5, 2.0)

#: The names of recorded LTE links in a folder of packet-delivery files.
RECORDINGS = "*LTE*"

#: The length of traces, after which rates stay constant.
DURATION_S = 180.0
#: The step of a wandering rate's trace, and the time in which the rate returns to its mean.
STEP_OF_TRACE_S, RETURN_S = 1.0, 15.0
DROP, DROP_S = 1 / 7, (15.0, 45.0)
FADE, FADES_S = 1 / 4, (12.0, 24.0)
REDRAW_S = 20.0
LTE_STEP_S = 0.5
LTE_MEAN_BPS = 20e6

#: The seconds of the traces for which a run is measured.
WINDOW_S = 65.0
CLASS_WINDOW_S, CLASS_DURATION_S = 180.0, 240.0

#: `regions`: rates, round trips, the bytes of a model, the pair that falls, and the pair that goes back and forth, with
#: the time that it stays at each rate.
REGION_RATES_BPS, REGION_RTTS_S = (9e6, 28e6), (0.065, 0.216)
REGION_BYTES = 1_600_000
FALL, FALL_S = 1 / 8, (41.0, 120.0)
FLAP_BPS, FLAP_S = (24e6, 8e6), (10.0, 20.0)

#: `cloud`: a site's egress, and links between hubs. Ingress is not capped: that link is as fast as the LAN of other
#: kinds. Rates are steady within a twentieth. Once in EXCURSION_EACH_S on average, a link has EXCURSION of its rate for
#: EXCURSION_S seconds.
EGRESS_BPS, HUB_BPS, INGRESS_BPS, HUB_DELAY_S = (10e6, 24e6), (18e6, 48e6), 100e6, 0.0005
STEADY = 0.05
EXCURSION_EACH_S, EXCURSION_S, EXCURSION = 900.0, (10.0, 60.0), (0.25, 0.6)


@dataclass(frozen=True, slots=True)
class Wan:
    """A network of the family."""

    kind: Kind
    sites: int
    seed: int
    #: A folder with packet-delivery files, RECORDINGS among them, if there is one.
    recorded: Path | None = None

    @property
    def name(self) -> str:
        """The network's name: kind and number of sites."""
        return f"{self.kind}-{self.sites}"

    @property
    def window_s(self) -> float:
        """The seconds of the traces for which a run is measured."""
        return CLASS_WINDOW_S if self.kind in ("regions", "cloud") else WINDOW_S

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the network's files into `folder`, and return an experiment's topology, training and compute on it."""
        draw = Random(f"{self.name}-{self.seed}")
        topology = self._topology(draw)
        self._traces(draw, topology, folder)
        _save(topology, folder)
        parameters = REGION_BYTES // 4 if self.kind == "regions" else self._parameters(folder / TOPOLOGY)
        return {
            "topology": TOPOLOGY,
            "train": {"model": "synthetic", "parameters": parameters},
            "compute": {"step_time": f"{STEP_S * 1e3:g}ms"},
        }

    def _topology(self, draw: Random) -> dict[str, Any]:
        regions = Topology.load(REGIONS)
        delay_s = {(link.source, link.target): link.state.delay_s for link in regions.links.values()}
        if self.kind == "regions":
            return self._regions(draw, sorted(regions.sites), delay_s)
        sites = sorted(draw.sample(sorted(regions.sites), self.sites))
        links = _links(sites, _pairs(sites, delay_s, 0.0, MOST_RTT_S))
        if self.kind == "cloud":
            return self._cloud(draw, sites, links, delay_s)
        return {
            "name": self.name,
            "sites": {site: {"workers": 1, "speed": draw.choice(SPEEDS)} for site in sites},
            "lan": {"rate": "1gbit", "delay": "0.1ms"},
            "links": [_pair(a, b, delay_s[a, b], _rate(draw), _rate(draw)) for a, b in links],
        }

    def _regions(self, draw: Random, regions: Sequence[str], delay_s: Mapping[tuple[str, str], float]) -> _Network:
        """Return sites joined by links with round trips of REGION_RTTS_S alone, each site by two links at least."""
        links: list[tuple[str, str]] = []
        while not links:
            sites = sorted(draw.sample(regions, self.sites))
            pairs = _pairs(sites, delay_s, *REGION_RTTS_S)
            whole = nx.Graph(pairs.keys())
            if len(whole) == len(sites) and nx.is_connected(whole) and min(dict(whole.degree).values()) >= 2:
                links = _links(sites, pairs)
        return {
            "name": self.name,
            "sites": {site: {"workers": 1} for site in sites},
            "lan": {"rate": "1gbit", "delay": "0.1ms"},
            "links": [
                _pair(a, b, delay_s[a, b], *(_rate(draw, *REGION_RATES_BPS) for _ in range(2))) for a, b in links
            ],
        }

    def _cloud(
        self,
        draw: Random,
        sites: Sequence[str],
        links: Sequence[tuple[str, str]],
        delay_s: Mapping[tuple[str, str], float],
    ) -> _Network:
        hubs = {site: f"{site}-hub" for site in sites}
        return {
            "name": self.name,
            "sites": {
                **{site: {"workers": 1, "speed": draw.choice(SPEEDS)} for site in sites},
                **{hub: {"workers": 0} for hub in hubs.values()},
            },
            "lan": {"rate": "1gbit", "delay": "0.1ms"},
            "links": [
                *(_pair(site, hub, HUB_DELAY_S, _rate(draw, *EGRESS_BPS), INGRESS_BPS) for site, hub in hubs.items()),
                *(_pair(hubs[a], hubs[b], delay_s[a, b], *(_rate(draw, *HUB_BPS) for _ in range(2))) for a, b in links),
            ],
        }

    def _traces(self, draw: Random, topology: _Network, folder: Path) -> None:
        """Give every link its trace, or a constant rate."""
        pairs = topology["links"]
        if self.kind == "regions":
            _fall_and_flap(draw, topology, folder)
            return
        if self.kind == "constant":
            for pair in pairs:
                for way in WAYS:
                    pair[way] = _steady(pair[way]["rate"])
            return
        busiest = max(pairs, key=lambda pair: min(pair[way]["rate"] for way in WAYS))
        faded = draw.sample(range(len(pairs)), len(pairs))
        for number, pair in enumerate(pairs):
            for way in WAYS:
                trace = self._trace(draw, pair[way]["rate"])
                if self.kind == "drop" and pair is busiest:
                    trace = Trace(Drop(*DROP_S, DROP).over(trace.rows))
                if self.kind == "fades":
                    begin_s = FADES_S[0] * faded.index(number) % 60
                    trace = Trace(Drop(begin_s, begin_s + FADES_S[1], FADE).over(trace.rows))
                pair[way] = _traced(pair, way, trace, folder)

    def _trace(self, draw: Random, mean_bps: float) -> Trace:
        seed = draw.randrange(2**32)
        if self.kind == "redraw":
            return UniformRedraw(LEAST_BPS, MOST_BPS, REDRAW_S, DURATION_S, seed).trace()
        if self.kind == "lte":
            return _lte(seed, self.recorded)
        if self.kind == "cloud":
            steady = OrnsteinUhlenbeck(mean_bps, STEADY, RETURN_S, STEP_OF_TRACE_S, CLASS_DURATION_S, seed).trace()
            return _excursions(draw, steady)
        spread = 0.05 if self.kind == "drop" else 0.33 if self.kind == "wander" else 0.1
        return OrnsteinUhlenbeck(mean_bps, spread, RETURN_S, STEP_OF_TRACE_S, DURATION_S, seed).trace()

    def _parameters(self, file: Path) -> int:
        """Return the number of parameters with which a round takes ROUND_S."""
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

#: The networks of the two classes.
CLASSES: Sequence[tuple[Kind, int]] = (("regions", 6), ("cloud", 6))


def _packed_s(topology: Topology, model_bytes: int, at_s: float) -> float:
    """Return the simulated seconds of a round by tree packing on the network at `at_s`."""
    states = {name: link.at(at_s) for name, link in topology.links.items()}
    view = view_of(topology, Routes.over(topology), states, model_bytes, 0.0, "declared")
    return simulate(make_policy("packing").plan(view), view).seconds


def _fall_and_flap(draw: Random, topology: _Network, folder: Path) -> None:
    """Let the pair of links that the first plan sends most over fall, and another pair go back and forth."""
    pairs, steady = topology["links"], [{way: pair[way]["rate"] for way in WAYS} for pair in topology["links"]]
    flapping = draw.randrange(len(pairs))
    steady[flapping] = dict.fromkeys(WAYS, FLAP_BPS[0])
    for pair, rates in zip(pairs, steady, strict=True):
        pair.update({way: _steady(rates[way]) for way in WAYS})
    _save(topology, folder)
    sent = first_plan_bytes(folder / TOPOLOGY, REGION_BYTES)
    loads = [sum(sent.get("->".join(ends), 0.0) for ends in _both_ways(pair)) for pair in pairs]
    falling = max((number for number in range(len(pairs)) if number != flapping), key=loads.__getitem__)
    turns_s = [0.0]
    while turns_s[-1] < CLASS_DURATION_S:
        turns_s.append(round(turns_s[-1] + draw.uniform(*FLAP_S), 1))
    for way in WAYS:
        rate_bps = steady[falling][way]
        fall = Trace((Row(0.0, rate_bps), Row(FALL_S[0], rate_bps * FALL), Row(FALL_S[1], rate_bps)))
        pairs[falling][way] = _traced(pairs[falling], way, fall, folder)
        flap = Trace(tuple(Row(at_s, FLAP_BPS[number % 2]) for number, at_s in enumerate(turns_s[:-1])))
        pairs[flapping][way] = _traced(pairs[flapping], way, flap, folder)


def first_plan_bytes(file: Path, model_bytes: int) -> Mapping[str, float]:
    """Return the bytes of a round that the first plan by `auto` sends over each link, for a model of `model_bytes`."""
    view = declared_view(Topology.load(file), model_bytes)
    plan = make_policy("auto").plan(view)
    sent: defaultdict[str, float] = defaultdict(float)
    for source, target, tree in plan.edges():
        for link in view.routes[source, target]:
            sent[link] += plan.trees[tree].share * model_bytes
    return sent


def _excursions(draw: Random, steady: Trace) -> Trace:
    """Return a trace with rare times of less than its rate."""
    rows, at_s = steady.rows, draw.expovariate(1 / EXCURSION_EACH_S)
    while at_s < CLASS_DURATION_S:
        ends_s = at_s + draw.uniform(*EXCURSION_S)
        rows = Drop(at_s, ends_s, draw.uniform(*EXCURSION)).over(rows)
        at_s = ends_s + draw.expovariate(1 / EXCURSION_EACH_S)
    return Trace(rows)


def _pair(a: str, b: str, delay_s: float, forward_bps: float, backward_bps: float) -> dict[str, Any]:
    """Return the entry of a pair of links; the rates are numbers until each direction has its trace."""
    rates = {"forward": {"rate": forward_bps}, "backward": {"rate": backward_bps}}
    return {"between": [a, b], "delay": f"{1e3 * delay_s:g}ms", **rates}


def _both_ways(pair: Mapping[str, Any]) -> tuple[tuple[str, str], tuple[str, str]]:
    a, b = pair["between"]
    return (a, b), (b, a)


def _steady(rate_bps: float) -> dict[str, Any]:
    return {"rate": f"{rate_bps / 1e3:g}kbit"}


def _traced(pair: Mapping[str, Any], way: str, trace: Trace, folder: Path) -> dict[str, Any]:
    """Write a link's trace, and return its entry in the topology."""
    file = f"{'-'.join(pair['between'])}-{way}.csv"
    write_csv(folder / file, trace)
    return {"trace": {"file": file, "end": "hold"}}


def _save(topology: _Network, folder: Path) -> None:
    (folder / TOPOLOGY).write_text(yaml.safe_dump(topology, sort_keys=False))


def _rate(draw: Random, least_bps: float = LEAST_BPS, most_bps: float = MOST_BPS) -> float:
    return round(draw.uniform(least_bps, most_bps), -3)


def _pairs(
    sites: Sequence[str], delay_s: Mapping[tuple[str, str], float], least_s: float, most_s: float
) -> dict[tuple[str, str], float]:
    """Return the pairs of sites with a round trip of `least_s` to `most_s`, and the one-way delay of each."""
    return {
        (min(pair), max(pair)): delay
        for pair, delay in delay_s.items()
        if set(pair) <= set(sites) and least_s <= 2 * delay <= most_s
    }


def _links(sites: Sequence[str], pairs: Mapping[tuple[str, str], float]) -> list[tuple[str, str]]:
    """Return the pairs to join: a shortest spanning tree, then the shortest others that routes would use.

    Pairs are added until each site has two and there are DEGREE per site on average.
    """
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
    """Return DURATION_S of an LTE link, from anywhere in the recording, scaled up."""
    draw = Random(seed)
    if recorded is None:
        rates = tuple(LTE_MEAN_BPS * part for part in (0.2, 0.6, 1.2, 2.0))
        return Markov.dwelling(rates, 4.0, LTE_STEP_S, DURATION_S, seed).trace()
    files = sorted(recorded.glob(RECORDINGS))
    schedule = parse_mahimahi(draw.choice(files).read_text().splitlines())
    whole = schedule.resampled(LTE_STEP_S).trace
    first = draw.randrange(max(len(whole.rows) - int(DURATION_S / LTE_STEP_S), 1))
    rates_bps = [row.rate_bps or 0.0 for row in whole.rows[first : first + int(DURATION_S / LTE_STEP_S)]]
    factor = LTE_MEAN_BPS * len(rates_bps) / sum(rates_bps)
    return Trace(tuple(Row(number * LTE_STEP_S, rate * factor) for number, rate in enumerate(rates_bps)))
