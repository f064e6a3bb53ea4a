"""Time an all-reduce of 24 MiB over emulated networks, by this library, by gloo, and against the bound.

    sudo python -m benchmarks.allreduce [--case NAME]

Members are processes in network namespaces of their own on an emulated network. Both libraries run in the same
namespaces, one after the other. This library follows the plan that `auto`, the default policy, makes for the configured
network. Where members are alike, that plan is a ring whose links carry one flow each instead of three; gloo's ring
follows the order of the members. gloo sums; this library takes the mean. The bound is that of every report
(`planning/bound.py`): over rates less header overhead, without delays.

A row is a case. Its seconds last from when all members have begun until the last member has the result: the median of
the repeats after one warm-up. Cases:

    a       four members at 200 Mbit/s each, round trips of 8 ms
    b       the same, with one member at 50 Mbit/s
    a-lan   case a without any distance
    c       NetStorm's nine sites with their drawn rates, scaled to what this host carries
    d       four members at 100 Mbit/s, a round trip of 100 ms and 0.1 % loss, under reno and under BBR. The congestion
            control is set on the route, so gloo has it too.
    e       two members over loopback, 256 MiB

gloo's slowest case, under reno, takes about a minute a round. `--quick` reduces a quarter of the bytes, with fewer
repeats. The exit code is 1 where a claim is missed.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.support.networks import roomy
from benchmarks.support.options import Options
from benchmarks.support.program import run_program
from benchmarks.support.reducers import Library, Outcome, Task
from benchmarks.support.rendezvous import Rendezvous
from benchmarks.support.table import Table, progress, show
from testbed.emulation.network.holders import Namespaces, idle_requests
from testbed.emulation.network.routing import Routes
from testbed.emulation.testbed import Backend, Testbed
from testbed.plan import Plan
from testbed.planning import make_policy
from testbed.planning.bound import bound
from testbed.planning.policies.star import star
from testbed.planning.view import View
from testbed.run.view import declared_states, view_of
from testbed.spec.topology import Topology

MIB = 1 << 20
REPEATS, QUICK_REPEATS = 5, 2
#: The time limit of a round. gloo's slowest case, reno at 0.1 % loss, takes about a minute a round.
TIMEOUT_S = 600.0
PORT = 29500

#: The factor on the network's rates. Packing then moves 0.6 Gbit/s over all links, which two cores carry beside the
#: members.
NETSTORM_SCALE = 0.4
NETSTORM = Path(__file__).parent.parent / "topologies" / "netstorm9.yaml"

#: The memory that a member may take beyond PyTorch's own: three times the tensor (itself and the sums of two rounds),
#: and this many MiB.
MEMORY_MODELS, MEMORY_MIB = 3, 64

#: The chunk size over loopback: few turns of Python, and still 64 chunks that can overlap.
LOOPBACK_CHUNK_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class Target:
    """A claim: this library takes at most `most` times the seconds of `peer`."""

    peer: str
    most: float


@dataclass(frozen=True, slots=True)
class Case:
    """A network (None for loopback), the tensor's size, and how members send."""

    name: str
    title: str
    targets: tuple[Target, ...]
    network: Topology | None
    mib: float = 24
    streams: int = 1
    congestion: str = ""
    gloo_once: bool = False


@dataclass(frozen=True, slots=True)
class Figures:
    """The measured seconds of a case by library, with the bound and the memory that they are compared with."""

    case: Case
    seconds: Mapping[Library, Sequence[float]]
    bound_s: float
    memory_bytes: int
    trees: int
    chunk_bytes: int

    def ratio(self, peer: str) -> float:
        """Return this library's median seconds divided by those of the peer (`gloo` or `bound`)."""
        against = self.bound_s if peer == "bound" else median(self.seconds["gloo"])
        return median(self.seconds["ours"]) / against if against else float("nan")

    @property
    def memory_allowed(self) -> float:
        """The bytes that a member may take beyond PyTorch's own: MEMORY_MODELS models and MEMORY_MIB."""
        return (MEMORY_MODELS * self.case.mib + MEMORY_MIB) * MIB

    @property
    def held(self) -> bool:
        """True if all claims on the seconds and the memory hold."""
        ratios = (self.ratio(target.peer) <= target.most for target in self.case.targets)
        return all(ratios) and self.memory_bytes <= self.memory_allowed


def hub(name: str, rates: Sequence[str], delay: str = "0ms", loss: str = "0%") -> Topology:
    """Return a topology of members that meet at one router, with one link each."""
    sites = {f"m{i}": {"workers": 1} for i in range(len(rates))}
    value = {
        "name": name,
        "sites": {"hub": {"workers": 0}, **sites},
        "links": [
            {"between": [site, "hub"], "rate": rate, "delay": delay, "loss": loss}
            for site, rate in zip(sites, rates, strict=True)
        ],
    }
    return Topology.from_value(value, Path(name))


def cases() -> tuple[Case, ...]:
    """Return all cases of the claim."""
    even, uneven = (hub("hub", [slowest, *["200mbit"] * 3], delay="2ms") for slowest in ("200mbit", "50mbit"))
    near = hub("near", ["200mbit"] * 4)
    lossy = hub("lossy", ["100mbit"] * 4, delay="25ms", loss="0.05%")
    netstorm = replace(Topology.load(NETSTORM).scaled(NETSTORM_SCALE), routing="inverse-rate")
    return (
        Case("a", "4 members, 200 Mbit/s", (Target("bound", 1.10), Target("gloo", 1.05)), roomy(even)),
        Case("b", "4 members, 200 Mbit/s, one 50", (Target("bound", 1.15),), roomy(uneven)),
        Case("a-lan", "as (a), without delays", (Target("bound", 1.15), Target("gloo", 1.05)), roomy(near)),
        Case("c", f"netstorm9 × {NETSTORM_SCALE:g}", (Target("bound", 1.25), Target("gloo", 1 / 3)), roomy(netstorm)),
        Case(
            "d-reno",
            "4 members, 100 Mbit/s, 100 ms, 0.1 % loss, reno",
            (Target("gloo", 1 / 1.5),),
            lossy,
            streams=8,
            congestion="reno",
            gloo_once=True,
        ),
        Case("d-bbr", "the same, BBR", (Target("gloo", 1.0),), lossy, streams=2, congestion="bbr"),
        Case("e", "loopback, 2 members", (Target("gloo", 1.0),), None, mib=256),
    )


@dataclass(slots=True)
class Team:
    """The members: the command that enters each one's network, its address, and the interface."""

    entering: dict[str, list[str]] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    interface: str = "lo"


@contextmanager
def team(case: Case, backend: Backend) -> Iterator[Team]:
    """Start the members' namespaces on the case's network, and end both when the context is left."""
    if case.network is None:
        members = ("m0", "m1")
        yield Team({member: [] for member in members}, dict.fromkeys(members, "127.0.0.1"))
        return
    name = f"allreduce-{case.name}-{os.getpid()}"
    with closing(Testbed(case.network, name=name, backend=backend)) as testbed:
        # Started step by step and without a replay, so that links stay as the plan expects them.
        testbed.open()
        testbed.build()
        testbed.start(Namespaces(), idle_requests(case.network.workers))
        network, found = testbed.network, Team(interface="eth0")
        for worker in case.network.workers:
            found.entering[worker.name] = ["nsenter", "-t", str(network.container(worker.name).pid), "-n"]
            found.addresses[worker.name] = network.address(worker)
            if case.congestion:
                _set_congestion(found.entering[worker.name], case.congestion)
        yield found


def _set_congestion(entering: Sequence[str], name: str) -> None:
    shown = subprocess.run([*entering, "ip", "route", "show", "default"], capture_output=True, text=True, check=True)
    subprocess.run([*entering, "ip", "route", "replace", *shown.stdout.split(), "congctl", name], check=True)


def view(case: Case) -> View | None:
    """Return the network as it is configured, or None over loopback."""
    if case.network is None:
        return None
    routes, states = Routes.over(case.network), declared_states(case.network)
    return view_of(case.network, routes, states, int(case.mib * MIB), 0.0, "oracle")


def plan(members: tuple[str, ...], seen: View | None) -> Plan:
    """Return this library's plan: by `auto` over a network; over loopback each member is the root of its part."""
    if seen is not None:
        return make_policy("auto").plan(seen)
    trees = tuple(star(members, root, 1 / len(members)) for root in members)
    return Plan(0, members, trees, LOOPBACK_CHUNK_BYTES)


def measure(case: Case, backend: Backend, repeats: int) -> Figures:
    """Measure this library, then gloo, on one network."""
    seen = view(case)
    with team(case, backend) as members:
        chosen = plan(tuple(members.addresses), seen)
        outcomes: dict[Library, list[Outcome]] = {}
        for library in ("ours", "gloo"):
            count = 1 if library == "gloo" and case.gloo_once else repeats
            progress(f"({case.name}) {case.title}: {library}")
            outcomes[library] = _run(case, members, library, chosen, count)
    seconds = {library: _seconds(each) for library, each in outcomes.items()}
    memory = max(outcome.memory_bytes for outcome in outcomes["ours"])
    least = bound(seen).seconds if seen is not None else 0.0
    return Figures(case, seconds, least, memory, len(chosen.trees), chosen.chunk_bytes)


def _run(case: Case, members: Team, library: Library, chosen: Plan, repeats: int) -> list[Outcome]:
    with (
        tempfile.TemporaryDirectory() as folder,
        Rendezvous(Path(folder), chosen, case.streams, TIMEOUT_S) as rendezvous,
    ):
        first = next(iter(members.addresses.values()))
        address = rendezvous.address if library == "ours" else f"{first}:{_port(members)}"
        processes = []
        for rank, (member, entering) in enumerate(members.entering.items()):
            task = Task(
                library=library,
                member=member,
                rank=rank,
                members=len(members.entering),
                address=address,
                listen=members.addresses[member],
                interface=members.interface,
                elements=int(case.mib * MIB / 4),
                repeats=repeats,
                timeout_s=TIMEOUT_S,
            )
            command = [*entering, sys.executable, "-m", "benchmarks.support.reducers", task.dumps()]
            processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        try:
            return [_outcome(process) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()


def _port(members: Team) -> int:
    """Return a free port of the loopback; in a namespace of its own any port is free."""
    if members.interface != "lo":
        return PORT
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _outcome(process: subprocess.Popen[str]) -> Outcome:
    said, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"a member ended with exit status {process.returncode}; its error stands above")
    return Outcome.loads(said.splitlines()[-1])


def _seconds(outcomes: Sequence[Outcome]) -> list[float]:
    """Return the seconds of each repeat, from when the last member began until the last one ended."""
    return [
        max(end for _, end in spans) - max(begin for begin, _ in spans)
        for spans in zip(*(outcome.spans for outcome in outcomes), strict=True)
    ]


def tables(all_figures: Sequence[Figures]) -> list[Table]:
    """Return one table with a row a case."""
    rows = []
    for figures in all_figures:
        case = figures.case
        gloo = median(figures.seconds["gloo"])
        rows.append(
            [
                f"({case.name}) {case.title}",
                f"{median(figures.seconds['ours']):.3f}",
                f"{gloo:.3f}",
                f"{figures.bound_s:.3f}" if figures.bound_s else "",
                "; ".join(f"{figures.ratio(t.peer):.2f} × {t.peer} (claimed ≤ {t.most:.2f})" for t in case.targets),
                f"{figures.memory_bytes / MIB:.0f} (≤ {figures.memory_allowed / MIB:.0f})",
                f"{figures.trees} trees, {figures.chunk_bytes >> 10} KiB, {case.streams} streams",
            ]
        )
    columns = ["case", "ours s", "gloo s", "bound s", "ours compared with", "MiB a member", "plan"]
    notes = ("MiB a member: the most memory that a member took beyond PyTorch's own, with the tensor.",)
    return [Table("Median seconds of an all-reduce", columns, rows, notes)]


def as_json(figures: Figures) -> dict[str, Any]:
    """Return a case's figures for JSON."""
    case = figures.case
    return {
        "seconds": {library: list(seconds) for library, seconds in figures.seconds.items()},
        "bound_seconds": figures.bound_s,
        "mib": case.mib,
        "memory_mib": figures.memory_bytes / MIB,
        "ratios": {target.peer: figures.ratio(target.peer) for target in case.targets},
        "claimed": {target.peer: target.most for target in case.targets},
    }


def main() -> int:
    """Measure the chosen cases and print them. Returns 1 where a claim is missed, else 0."""
    known = {case.name: case for case in cases()}
    parser = Options(__doc__)
    parser.add_repeats(REPEATS, QUICK_REPEATS)
    parser.add_argument("--case", action="append", choices=known, help="measure this case only; may be repeated")
    parser.add_argument("--backend", default="userspace", help="the backend that shapes the links")
    wanted = parser.parse()
    chosen = [known[name] for name in wanted.case or known]
    if wanted.quick:
        chosen = [replace(case, mib=case.mib / 4) for case in chosen]
    all_figures = [measure(case, wanted.backend, wanted.repeats) for case in chosen]
    figures = {"repeats": wanted.repeats, "cases": {each.case.name: as_json(each) for each in all_figures}}
    show(tables(all_figures), figures, as_json=wanted.json, backend=wanted.backend)
    return 0 if all(each.held for each in all_figures) else 1


if __name__ == "__main__":
    run_program(main)
