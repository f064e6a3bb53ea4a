"""Gossip as the controller sees it: no rounds, but members that are each in an iteration of its own."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import count, permutations
from math import inf, isfinite
from typing import Any

from msgspec.structs import replace

from testbed.controller.model.contradiction import Contradiction
from testbed.controller.model.round_log import means
from testbed.controller.model.spec import GossipGraph
from testbed.planning import Pair
from testbed.planning.graphs import GapMonitor, Violation
from testbed.protocol import Report

#: The monitor must be fed in the order of time, and reports over different connections may come to be read in
#: another. Members send them at once, so after this long none that is older can be under way.
REORDERED_S = 1.0

#: Reports that may wait for that, of each member: it enters no more iterations in so long. Of more the oldest are
#: judged early.
MOST_WAITING = 10_000


@dataclass(slots=True)
class _GraphPeriod:
    """The iterations from `first` to `end` in which a graph of `members` holds.

    While some have gone over to the next one and others not, what holds is this: iterations that are clamped to the
    period's keep its bounds. So its monitor follows the members from `first` on and no further than to `end`.
    """

    first: int
    graph: GossipGraph
    members: tuple[str, ...]
    bounds: dict[Pair, float]
    monitor: GapMonitor
    end: float = inf

    @classmethod
    def of(cls, first: int, graph: GossipGraph, members: tuple[str, ...]) -> _GraphPeriod:
        bounds = graph.bounds(members)
        return cls(first, graph, members, bounds, GapMonitor(members, bounds))

    def advance(self, member: str, iteration: int) -> list[Violation]:
        within = int(min(iteration, self.end)) - self.first
        if within <= 0 or member not in self.members or within == self.monitor.iterations[member]:
            return []
        return self.monitor.advance(member, within)

    def remove(self, member: str, graph: GossipGraph) -> None:
        self.graph = graph
        self.members = tuple(other for other in self.members if other != member)
        bounds = graph.bounds(self.members)
        self.bounds |= bounds
        self.monitor.remove(member, bounds)


class IterationLog:
    """Follows the iterations and gaps of the `members` that are there, of those named at first.

    When they were entered is told by a clock that nobody sets (see UnixClock): an entry that is judged too late would
    take its member back to an iteration long left.
    """

    def __init__(self, members: tuple[str, ...], graph: GossipGraph) -> None:
        self._periods = [_GraphPeriod.of(0, graph, members)]
        self._monitor = GapMonitor(members, dict.fromkeys(permutations(members, 2), inf))
        self._named = members
        self.members = members
        self.deaths: list[dict[str, Any]] = []
        self._breaches: list[str] = []
        self._waiting: list[tuple[float, int, str, int]] = []
        self._order = count()
        self._entered: dict[str, int] = {}
        self._newest: dict[str, Report] = {}
        self._entered_s: dict[str, float] = {}

    def add(self, report: Report, entered_s: float) -> list[Violation]:
        """A member has entered an iteration: the bounds that turn out broken. Contradiction when it went back."""
        before = self._entered.get(report.member)
        if before is not None and report.round <= before:
            raise Contradiction(
                f"it reported iteration {report.round} after {before}",
                rule="order",
                member=report.member,
                round=report.round,
            )
        self._entered[report.member] = report.round
        self._newest[report.member] = replace(report, arrivals={}, slices=())
        self._entered_s[report.member] = entered_s
        heapq.heappush(self._waiting, (entered_s, next(self._order), report.member, report.round))
        return self.judge(entered_s - REORDERED_S)

    def remove(self, member: str, why: str) -> list[Violation]:
        """A member has died and the others go on; the bounds that were broken before. GraphError when they can't.

        What others reported of the time before may still be under way, and comes to be judged by the graph without it.
        """
        standing = [period for period in self._periods if period.end > (self.lowest or 0) and member in period.members]
        graphs = [period.graph.without(member, period.members) for period in standing]
        broken = self.judge(self._whole_until_s)
        self._newest.pop(member, None)
        self._entered_s.pop(member, None)
        iteration = self._entered.pop(member, 0)
        self.members = tuple(other for other in self.members if other != member)
        self._monitor.remove(member, {})
        for period, graph in zip(standing, graphs, strict=True):
            period.remove(member, graph)
        self.deaths.append({"member": member, "iteration": iteration, "why": why})
        return broken

    def change_graph(self, first: int, graph: GossipGraph, joins: str = "") -> None:
        """From iteration `first` on, which nobody is in yet, the graph is another, and has a member more that `joins`,
        if it says so; GraphError when it is none."""
        if joins:
            self.members = tuple(name for name in self._named if name in {*self.members, joins})
            self._monitor.rejoin(joins, first)
            self._entered[joins] = first
        self._periods[-1].end = first
        self._periods.append(_GraphPeriod.of(first, graph, self.members))

    def judge(self, until_s: float) -> list[Violation]:
        """Judge what was reported of the time up to `until_s`; the bounds that it breaks."""
        broken: list[Violation] = []
        most = MOST_WAITING * len(self._named)
        while self._waiting and (self._waiting[0][0] <= until_s or len(self._waiting) > most):
            _, _, member, iteration = heapq.heappop(self._waiting)
            if member in self._monitor.iterations:
                self._monitor.advance(member, iteration)
                broken += [breach for period in self._periods for breach in period.advance(member, iteration)]
        self._breaches += map(str, broken)
        return broken

    @property
    def lowest(self) -> int | None:
        """The iteration that all members have entered; None before."""
        return min(self._entered.values()) if len(self._entered) == len(self.members) else None

    @property
    def _whole_until_s(self) -> float:
        """Of the time until then every report was read: each member's are read in their order."""
        there = self._entered_s.keys() >= set(self.members)
        return min(self._entered_s.values(), default=-inf) if there else -inf

    @property
    def seconds(self) -> float | None:
        """How long the members' newest iterations took, in the mean; one that leapt counts as many."""
        found = [report.finished_s - report.started_s for report in self._newest.values()]
        return sum(found) / len(found) if found else None

    def metrics(self) -> dict[str, float | None]:
        """The mean over members of each metric of their newest reports; None where one is not finite."""
        return means(self._newest.values())

    def to_json(self) -> dict[str, Any]:
        """The widest iteration gap, and that of each pair that ever was apart beside its bound (None: it has none).

        After a swap of the graph each has an entry `since` the iteration of the swap.
        """
        return {
            "widest": max(self._monitor.widest.values(), default=0),
            "deaths": self.deaths,
            "breaches": self._breaches,
            "pairs": [
                {
                    "since": period.first,
                    "ahead": ahead,
                    "behind": behind,
                    "widest": gap,
                    "bound": bound if isfinite(bound := period.bounds[ahead, behind]) else None,
                }
                for period in self._periods
                for (ahead, behind), gap in period.monitor.widest.items()
                if gap
            ],
        }
