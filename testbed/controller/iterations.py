"""Decentralized training as the controller sees it: no rounds, but members that are each in an iteration of its own."""

from __future__ import annotations

import heapq
from itertools import count
from math import inf, isfinite
from typing import Any

from testbed.controller.spec import Circle
from testbed.planning.graphs import Breach, GapMonitor
from testbed.protocol import Report

#: The monitor must be fed in the order of time, and reports over different connections may come to be read in
#: another. Members send them at once, so after this long none that is older can be under way.
SETTLED_S = 1.0


class IterationBook:
    """Follows the members' iterations and gaps. Reports' times are of one clock: that of the host they all run on."""

    def __init__(self, members: tuple[str, ...], circle: Circle) -> None:
        self._circle = circle
        self._bounds = circle.bounds(members)
        self._monitor = GapMonitor(members, self._bounds)
        self.members = members
        self.deaths: list[dict[str, Any]] = []
        self._waiting: list[tuple[float, int, str, int]] = []
        self._order = count()
        self._newest: dict[str, Report] = {}

    def add(self, report: Report) -> list[Breach]:
        """A member has entered an iteration: the bounds that turn out broken. ValueError when it went back."""
        before = self._newest.get(report.member)
        if before is not None and report.round <= before.round:
            raise ValueError(f"{report.member} reported iteration {report.round} after {before.round}")
        self._newest[report.member] = report
        heapq.heappush(self._waiting, (report.finished_s, next(self._order), report.member, report.round))
        return self.settle(report.finished_s - SETTLED_S)

    def bury(self, member: str, why: str) -> list[Breach]:
        """A member has died and the others go on; the bounds that were broken before. GraphError when they can't."""
        circle = self._circle.without(member, self.members)
        broken = self.settle(inf)
        last = self._newest.pop(member, None)
        self._circle = circle
        self.members = tuple(other for other in self.members if other != member)
        bounds = circle.bounds(self.members)
        self._bounds = {**self._bounds, **bounds}
        self._monitor.forget(member, bounds)
        self.deaths.append({"member": member, "iteration": last.round if last else 0, "why": why})
        return broken

    def settle(self, until_s: float) -> list[Breach]:
        """Judge what was reported of the time up to `until_s`; the bounds that it breaks."""
        broken: list[Breach] = []
        while self._waiting and self._waiting[0][0] <= until_s:
            _, _, member, iteration = heapq.heappop(self._waiting)
            if member in self._monitor.iterations:
                broken += self._monitor.advance(member, iteration)
        return broken

    @property
    def lowest(self) -> int | None:
        """The iteration that all members have entered; None before."""
        found = [report.round for report in self._newest.values()]
        return min(found) if len(found) == len(self._monitor.iterations) else None

    @property
    def seconds(self) -> float | None:
        """How long the members' newest iterations took, in the mean; one that leapt counts as many."""
        found = [report.finished_s - report.started_s for report in self._newest.values()]
        return sum(found) / len(found) if found else None

    def metrics(self) -> dict[str, float]:
        """The mean over members of each metric of their newest reports."""
        values: dict[str, list[float]] = {}
        for report in self._newest.values():
            for name, value in report.metrics.items():
                values.setdefault(name, []).append(value)
        return {name: sum(found) / len(found) for name, found in values.items()}

    def to_json(self) -> dict[str, Any]:
        """The widest iteration gap, and that of each pair that ever was apart beside its bound (None: it has none)."""
        widest = self._monitor.widest
        bounds = {pair: bound if isfinite(bound) else None for pair, bound in self._bounds.items()}
        return {
            "widest": max(widest.values(), default=0),
            "deaths": self.deaths,
            "breaches": [str(breach) for breach in self._monitor.breaches],
            "pairs": [
                {"ahead": ahead, "behind": behind, "widest": gap, "bound": bounds[ahead, behind]}
                for (ahead, behind), gap in widest.items()
                if gap
            ],
        }
