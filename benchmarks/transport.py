"""Measure what part of a long link TCP fills: one flow with fitted buffers and the kernel's, several on a lossy path.

    sudo python -m benchmarks.transport [--only buffers|loss|share|rise]

Each figure is the goodput of iperf3 in the workers' namespaces, as its server counts it over the seconds 5 to 25,
divided by the ideal: 1448/1514 of the link's rate. A flow takes half a minute.

buffers: One flow over 140 Mbit/s and a round trip of 218 ms, under BBR and reno, with the kernel's buffers and with
    fitted ones. The target is 93 % with fitted ones.
loss: 1 flow, and as many as `sync.streams` takes, over 100 Mbit/s and a round trip of 150 ms that loses 0.1 % of its
    packets, under each congestion control. The target is 90 % for the best of them.
share: One flow under BBR beside one flow under cubic, over that path without and with the loss, and what the flow under
    cubic has there alone. Its target is a third of BBR's goodput, or of its own goodput alone if that is less.
rise: One connection under BBR over 10 Mbit/s and a round trip of 150 ms, which fall to a twentieth for 15 s. The link
    counts what it carries in the 15 s after the rise, as a part of what it carried in 5 s before the fall. Members let
    such a connection begin again (`testbed.sync.transport.startup`); beside it stands one that the kernel has alone.
    The target is 80 %. Each takes 40 s.

The exit code is 1 where a figure is missed; `--quick` judges one measurement of each.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.support.options import Options
from benchmarks.support.program import run_program
from benchmarks.support.table import Table, progress, show
from testbed.emulation.testbed import Testbed
from testbed.link import MTU_FRAME_BYTES, TCP_PAYLOAD_BYTES
from testbed.spec.sync import MOST_STREAMS
from testbed.spec.topology import Topology

LONG_PATH = {"rate": "140mbit", "delay": "109ms"}
LOSSLESS_PATH = {"rate": "100mbit", "delay": "75ms"}
LOSSY_PATH = {**LOSSLESS_PATH, "loss": "0.1%"}

#: The path whose rate rises, and its rate while it is low.
RISING_PATH, LOW = {"rate": "10mbit", "delay": "75ms"}, "0.5mbit"
#: Seconds before the fall, of which the last count; of the fall; and counted after the rise.
BEFORE_S, COUNTED_S, FALLEN_S, RISEN_S = 10.0, 5.0, 15.0, 15.0

BEGIN_S, END_S = 5, 25
#: Targets, as parts of the ideal: for one flow with fitted buffers, for the best on the lossy path, and after a rise.
WANTED, WANTED_LOSSY, WANTED_RISEN = 0.93, 0.9, 0.8
#: The largest ratio of two flows' goodputs at one bottleneck.
MOST_UNEQUAL = 3.0
REPEATS, QUICK_REPEATS = 3, 1
COMPARISONS = ("buffers", "loss", "share", "rise")
#: iperf3's server listens within this.
LISTEN_S = 0.5
FIRST_PORT = 5201


class Flows(NamedTuple):
    """Connections of one iperf3."""

    congestion: str
    connections: int = 1

    def __str__(self) -> str:
        """Return the flows as a table shows them."""
        return f"{self.connections} × {self.congestion}"


def goodput_bps(server: Mapping[str, Any]) -> float:
    """Return the goodput from the fifth second to the 25th, by the report of iperf3's server.

    Its intervals last about a second; those that begin in this time count.
    """
    sums = [interval["sum"] for interval in server["intervals"]]
    counted = [each for each in sums if BEGIN_S <= round(each["start"]) < END_S]
    return float(sum(each["bytes"] for each in counted) * 8 / sum(each["seconds"] for each in counted))


def measure(path: Mapping[str, str], *flows: Flows, fitted: bool = True) -> tuple[list[float], str]:
    """Return the part of the ideal that each iperf3 has on a fresh network, and the shaping backend's name."""
    sites = {name: {"workers": len(flows)} for name in ("a", "b")}
    value = {"name": "transport", "sites": sites, "links": [{"between": ["a", "b"], **path}]}
    topology = Topology.from_value(value, Path("transport.yaml"))
    with Testbed(topology, workers="namespaces", fit_transport=fitted) as testbed, ExitStack() as stack:
        network = testbed.network
        sources, targets = ([worker for worker in topology.workers if worker.site == name] for name in ("a", "b"))
        ideal_bps = next(iter(topology.links.values())).state.rate_bps * TCP_PAYLOAD_BYTES / MTU_FRAME_BYTES
        servers = []
        for place, target in enumerate(targets):
            words = ["iperf3", "-s", "-1", "-J", "-p", str(FIRST_PORT + place)]
            server = network.container(target.name).popen(words, stdout=subprocess.PIPE)
            stack.callback(server.wait)
            stack.callback(server.kill)
            servers.append(server)
        time.sleep(LISTEN_S)
        clients = []
        for place, (source, target, (congestion, connections)) in enumerate(zip(sources, targets, flows, strict=True)):
            words = ["iperf3", "-c", network.address(target), "-p", str(FIRST_PORT + place)]
            words += ["-t", str(END_S + 1), "-C", congestion, "-P", str(connections)]
            client = network.container(source.name).popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            clients.append((words, client))
        for words, client in clients:
            said = client.communicate()[0]
            if client.returncode:
                raise RuntimeError(f"`{' '.join(words)}` failed: {said.decode().strip()}")
        parts = [goodput_bps(json.loads(server.communicate()[0])) / ideal_bps for server in servers]
        return parts, network.shaper.name


def measure_rise(again: bool) -> tuple[float, str]:
    """Return what a link carries after its rise, as a part of what it carried before its fall, and the backend's name.

    Args:
        again: True if the connection begins again as those of members do.
    """
    value = {"name": "transport", "sites": {name: {"workers": 1} for name in "ab"}}
    topology = Topology.from_value({**value, "links": [{"between": ["a", "b"], **RISING_PATH}]}, Path("transport.yaml"))
    with Testbed(topology, workers="namespaces") as testbed, ExitStack() as stack:
        network = testbed.network
        source, target = topology.workers
        where = [network.address(target), str(FIRST_PORT)]
        for worker, words in (
            (target, ["receive", *where]),
            (source, ["send", *where, "bbr", *(["again"] if again else [])]),
        ):
            process = network.container(worker.name).popen([sys.executable, "-m", "benchmarks.support.bulk", *words])
            stack.callback(process.wait)
            stack.callback(process.kill)
        link = testbed.links["a->b"]

        def bytes_s(seconds: float) -> float:
            began_s, before = time.monotonic(), link.counters.bytes
            time.sleep(seconds)
            return (link.counters.bytes - before) / (time.monotonic() - began_s)

        time.sleep(BEFORE_S - COUNTED_S)
        high = bytes_s(COUNTED_S)
        link.change(rate=LOW)
        time.sleep(FALLEN_S)
        link.change(rate=RISING_PATH["rate"])
        return bytes_s(RISEN_S) / high, network.shaper.name


class Measured:
    """Tables and figures of the cells measured so far, and what was missed."""

    def __init__(self, repeats: int) -> None:
        self.tables: list[Table] = []
        self.figures: dict[str, Any] = {"repeats": repeats}
        self.missed: list[str] = []
        self.backend = ""
        self._repeats = repeats

    def parts(self, what: str, path: Mapping[str, str], *flows: Flows, fitted: bool = True) -> list[list[float]]:
        """Return each iperf3's parts of the ideal, one of each repeat."""
        found = []
        for number in range(self._repeats):
            progress(f"{what}, {number + 1} of {self._repeats}")
            parts, self.backend = measure(path, *flows, fitted=fitted)
            found.append(parts)
        return [list(each) for each in zip(*found, strict=True)]

    def buffers(self) -> None:
        """Compare fitted buffers with the kernel's on the long path."""
        found = {}
        for congestion, setting in product(("bbr", "reno"), ("kernel", "fitted")):
            what = f"{congestion}, buffers: {setting}"
            (found[congestion, setting],) = self.parts(what, LONG_PATH, Flows(congestion), fitted=setting == "fitted")
        missed = [f"{name}, {how}" for (name, how), parts in found.items() if how == "fitted" and min(parts) < WANTED]
        self._add(
            "One flow, 140 Mbit/s, 218 ms: goodput of the ideal, seconds 5 to 25",
            ("congestion control", "transport"),
            [(*key, *_spread(parts)) for key, parts in found.items()],
            f"fitted wants {WANTED:.0%} at least",
            missed,
        )
        self.figures["goodput_ratio"] = {", ".join(key): parts for key, parts in found.items()}
        self.figures["wanted"] = WANTED

    def loss(self) -> None:
        """Compare one flow and several on the lossy path."""
        cells = [Flows(name, count) for name in ("bbr", "cubic", "reno") for count in (1, MOST_STREAMS)]
        found = {flows: self.parts(f"lossy path, {flows}", LOSSY_PATH, flows)[0] for flows in cells}
        best = max(statistics.median(parts) for parts in found.values())
        self._add(
            "100 Mbit/s, 150 ms, 0.1 % of packets lost: goodput of the ideal, seconds 5 to 25",
            ("flows",),
            [(str(flows), *_spread(parts)) for flows, parts in found.items()],
            f"the best wants {WANTED_LOSSY:.0%} at the median",
            [] if best >= WANTED_LOSSY else [f"the best ({best:.1%})"],
        )
        self.figures["lossy_goodput_ratio"] = {str(flows): parts for flows, parts in found.items()}

    def share(self) -> None:
        """Compare one flow under BBR with one under cubic beside it."""
        rows, missed, figures = [], [], {}
        for name, path in (("no loss", LOSSLESS_PATH), ("0.1 % lost", LOSSY_PATH)):
            ours, beside = self.parts(f"{name}, BBR beside cubic", path, Flows("bbr"), Flows("cubic"))
            (alone,) = self.parts(f"{name}, cubic alone", path, Flows("cubic"))
            fair = min(statistics.median(alone), statistics.median(ours)) / MOST_UNEQUAL
            figures[name] = {"bbr": ours, "cubic beside it": beside, "cubic alone": alone}
            rows.append((name, *(f"{statistics.median(parts):.1%}" for parts in (ours, beside, alone))))
            if statistics.median(beside) < fair:
                missed.append(name)
        self.tables.append(
            Table(
                "One flow under BBR beside one under cubic, 100 Mbit/s, 150 ms: goodput of the ideal, medians",
                ("path", "BBR", "cubic beside it", "cubic alone"),
                rows,
                [f"cubic wants a third of the lesser of BBR's and its own alone: {_outcome(missed)}"],
            )
        )
        self.missed += missed
        self.figures["share"] = figures

    def rise(self) -> None:
        """Compare connections after a rise of their link."""
        found: dict[str, list[float]] = {}
        for name in ("BBR alone", "begins again"):
            for number in range(self._repeats):
                progress(f"rise, {name}, {number + 1} of {self._repeats}")
                part, self.backend = measure_rise(again=name == "begins again")
                found.setdefault(name, []).append(part)
        self._add(
            f"10 Mbit/s, 150 ms, after {FALLEN_S:g} s at a twentieth: a part of what was carried before the fall",
            ("connection",),
            [(name, *_spread(parts)) for name, parts in found.items()],
            f"the one that begins again wants {WANTED_RISEN:.0%} at the median",
            [] if statistics.median(found["begins again"]) >= WANTED_RISEN else ["it"],
        )
        self.figures["risen_ratio"] = found

    def _add(
        self, title: str, keys: tuple[str, ...], rows: list[tuple[str, ...]], want: str, missed: list[str]
    ) -> None:
        self.tables.append(Table(title, (*keys, "median", "least", "most"), rows, [f"{want}: {_outcome(missed)}"]))
        self.missed += missed


def main(words: Sequence[str] | None = None) -> int:
    """Measure the asked comparisons, print their tables, and return the exit code."""
    options = Options(__doc__)
    options.add_repeats(REPEATS, QUICK_REPEATS)
    options.add_argument("--only", choices=COMPARISONS, help="one of the comparisons")
    asked = options.parse(words)
    measured = Measured(asked.repeats)
    for name in COMPARISONS:
        if asked.only in (None, name):
            getattr(measured, name)()
    show(measured.tables, measured.figures, as_json=asked.json, backend=measured.backend)
    return 1 if measured.missed else 0


def _spread(parts: Sequence[float]) -> tuple[str, ...]:
    return tuple(f"{of(parts):.1%}" for of in (statistics.median, min, max))


def _outcome(missed: Sequence[str]) -> str:
    return f"missed by {', '.join(missed)}" if missed else "all had it"


if __name__ == "__main__":
    run_program(main)
