"""The log of gossip iterations: each member is in its own iteration, and the gaps between them are judged."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count, permutations
from math import inf, isfinite
from typing import Any

from msgspec.structs import replace

from testbed.controller.model.actions import Contradiction
from testbed.controller.model.spec import GossipGraph
from testbed.planning import Pair
from testbed.planning.gaps import GapMonitor, Violation
from testbed.protocol import Report
from testbed.telemetry.averages import means_if_all

#: The monitor needs reports in the order of their times, and reports over different connections may be read out of
#: order. Members send reports at once, so after this many seconds no older report can be under way.
REORDERED_S = 1.0

#: Reports of each member that may wait for REORDERED_S, more than the iterations that a member enters in that time. If
#: there are more, the oldest are judged early.
MOST_WAITING = 10_000


@dataclass(slots=True)
class _GraphPeriod:
    """The iterations from `first` to `end`, in which one graph of `members` is in force.

    While only some members have changed to the next graph, iterations clamped to the period still keep its bounds. So
    the period's monitor follows the members from `first` to `end` and no further.
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

    def is_over(self, members: Iterable[str]) -> bool:
        """Return whether each of these members has reached the period's end, or was not in the period."""
        if self.end == inf:
            return False
        iterations, last = self.monitor.iterations, self.end - self.first
        return all(iterations.get(member, last) >= last for member in members)

    def remove(self, member: str, graph: GossipGraph) -> None:
        self.graph = graph
        self.members = tuple(other for other in self.members if other != member)
        bounds = graph.bounds(self.members)
        self.bounds |= bounds
        self.monitor.remove(member, bounds)


class IterationLog:
    """Follows the iterations of the present members and the gaps between them.

    Entries are timed by the monotonic clock (see UnixClock): an entry that is judged too late would put its member back
    into an iteration that it left long ago.
    """

    def __init__(self, members: tuple[str, ...], graph: GossipGraph) -> None:
        self._periods = [_GraphPeriod.of(0, graph, members)]
        self._over = 0  # the periods that all members have left, the first of them
        self._monitor = GapMonitor(members, dict.fromkeys(permutations(members, 2), inf))
        self._named = members
        self.members = members
        self.deaths: list[dict[str, Any]] = []
        self._violations: list[str] = []
        self._waiting: list[tuple[float, int, str, int]] = []
        self._order = count()
        self._entered: dict[str, int] = {}
        self._newest: dict[str, Report] = {}
        self._entered_s: dict[str, float] = {}

    def add(self, report: Report, entered_s: float) -> list[Violation]:
        """Record that a member entered an iteration.

        Args:
            report: The member's report.
            entered_s: When it entered, in monotonic seconds.

        Returns:
            The bounds that turn out broken.

        Raises:
            Contradiction: The member went back to an earlier iteration.
        """
        before = self._entered.get(report.member)
        if before is not None and report.round <= before:
            text = f"it reported iteration {report.round} after {before}"
            raise Contradiction(text, rule="order", member=report.member, round=report.round, epoch=report.epoch)
        self._entered[report.member] = report.round
        self._newest[report.member] = replace(report, arrivals={}, slices=())
        self._entered_s[report.member] = entered_s
        heapq.heappush(self._waiting, (entered_s, next(self._order), report.member, report.round))
        return self.judge(entered_s - REORDERED_S)

    def remove(self, member: str, why: str) -> list[Violation]:
        """Remove a member that died.

        Reports of others from before its death may still be under way; they are judged by the graph without it.

        Returns:
            The bounds that were broken before its death.

        Raises:
            GraphError: The others can't go on without it.
        """
        periods = [period for period in self._periods if period.end > (self.lowest or 0) and member in period.members]
        graphs = [period.graph.without(member, period.members) for period in periods]
        broken = self.judge(self._complete_until_s)
        self._newest.pop(member, None)
        self._entered_s.pop(member, None)
        iteration = self._entered.pop(member, 0)
        self.members = tuple(other for other in self.members if other != member)
        self._monitor.remove(member, {})
        for period, graph in zip(periods, graphs, strict=True):
            period.remove(member, graph)
        self.deaths.append({"member": member, "iteration": iteration, "why": why})
        return broken

    def change_graph(self, first: int, graph: GossipGraph, joins: str = "") -> None:
        """Put another communication graph in force from the iteration `first` on.

        Args:
            first: The first iteration under the graph, which no member has entered yet.
            graph: The graph.
            joins: The member that joins with the graph, or empty.

        Raises:
            GraphError: The edges make no connected graph.
        """
        if joins:
            self.members = tuple(name for name in self._named if name in {*self.members, joins})
            self._monitor.rejoin(joins, first)
            self._entered[joins] = first
        self._periods[-1].end = first
        self._periods.append(_GraphPeriod.of(first, graph, self.members))

    def judge(self, until_s: float) -> list[Violation]:
        """Judge the reports of entries up to `until_s`, in monotonic seconds. Return the bounds that they break."""
        broken: list[Violation] = []
        most = MOST_WAITING * len(self._named)
        while self._waiting and (self._waiting[0][0] <= until_s or len(self._waiting) > most):
            _, _, member, iteration = heapq.heappop(self._waiting)
            if member in self._monitor.iterations:
                self._monitor.advance(member, iteration)
                for period in self._periods[self._over :]:
                    broken += period.advance(member, iteration)
                while self._periods[self._over].is_over(self._monitor.iterations):
                    self._over += 1
        self._violations += map(str, broken)
        return broken

    @property
    def lowest(self) -> int | None:
        """The newest iteration that all members have entered, or None."""
        return min(self._entered.values()) if len(self._entered) == len(self.members) else None

    @property
    def _complete_until_s(self) -> float:
        """The time up to which every report was read. Each member's reports are read in their order."""
        there = self._entered_s.keys() >= set(self.members)
        return min(self._entered_s.values(), default=-inf) if there else -inf

    @property
    def seconds(self) -> float | None:
        """The mean seconds of the members' newest iterations. A leap over several iterations counts as one."""
        found = [report.finished_s - report.started_s for report in self._newest.values()]
        return sum(found) / len(found) if found else None

    def metrics(self) -> dict[str, float | None]:
        """Return the mean of each metric over the members' newest reports; None where a value is not finite."""
        return means_if_all(report.metrics for report in self._newest.values())

    def to_json(self) -> dict[str, Any]:
        """Return the widest iteration gap, and the widest gap and bound (None: unbounded) of each pair that had a gap.

        After a swap of the graph each pair has another entry, `since` the iteration of the swap.
        """
        return {
            "widest": max(self._monitor.widest.values(), default=0),
            "deaths": self.deaths,
            "violations": self._violations,
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
