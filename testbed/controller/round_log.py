"""Rounds as the controller sees them: each member's report, what follows when all have reported, and who is heard of
while one takes long."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from testbed.planning import Pair
from testbed.protocol import PeerSample, Report, Train

#: Rounds over which it is looked how long members compute: now and then one evaluates its model too.
COMPUTED = 8


@dataclass(frozen=True, slots=True)
class ReportedRound:
    """A round that all members have reported. Times are Unix seconds."""

    number: int
    reports: Mapping[str, Report]

    @property
    def epoch(self) -> int:
        """The epoch of the plan it went by."""
        return max(report.epoch for report in self.reports.values())

    @property
    def entered_s(self) -> float:
        """When the last member entered it."""
        return max(report.started_s for report in self.reports.values())

    @property
    def finished_s(self) -> float:
        """When the last member finished it."""
        return max(report.finished_s for report in self.reports.values())

    @property
    def seconds(self) -> float:
        """The time of the round: from when the last member entered to when the last finished."""
        return self.finished_s - self.entered_s

    @property
    def lost(self) -> int:
        """Updates that a member's result did not hold, over all members."""
        return sum(report.lost for report in self.reports.values())

    @property
    def duplicated(self) -> int:
        """Updates that a member's result held twice, over all members."""
        return sum(report.duplicated for report in self.reports.values())

    def samples(self) -> dict[Pair, PeerSample]:
        """Each edge's transfer in this round, by (sender, receiver)."""
        return {(member, sample.peer): sample for member, report in self.reports.items() for sample in report.peers}

    def arrivals(self) -> dict[Pair, tuple[Train, ...]]:
        """The trains of each edge that came in this round, by (sender, receiver)."""
        return {
            (peer, member): trains
            for member, report in self.reports.items()
            for peer, trains in report.arrivals.items()
        }

    def rates(self) -> dict[str, float]:
        """The samples per second of each member that says them."""
        found = {member: report.metrics.get("samples_per_s") for member, report in self.reports.items()}
        return {member: rate for member, rate in found.items() if rate}

    def metrics(self) -> dict[str, float]:
        """The mean over members of each metric, over those that reported it."""
        values: dict[str, list[float]] = {}
        for report in self.reports.values():
            for name, value in report.metrics.items():
                values.setdefault(name, []).append(value)
        return {name: sum(found) / len(found) for name, found in values.items()}

    def to_json(self) -> dict[str, Any]:
        """The round in short, for those who watch."""
        return {
            "round": self.number,
            "epoch": self.epoch,
            "entered_s": self.entered_s,
            "finished_s": self.finished_s,
            "seconds": self.seconds,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "metrics": self.metrics(),
        }


class RoundLog:
    """Gathers reports into rounds; `expected` says who takes part under the plan of an epoch, and is still there."""

    def __init__(self, expected: Callable[[int], frozenset[str]]) -> None:
        self._expected = expected
        self._open: dict[int, dict[str, Report]] = {}
        self._heard_s: dict[str, float] = {}
        self.complete: list[ReportedRound] = []

    def hear(self, member: str, now_s: float) -> None:
        """A member says that it is still in a round."""
        self._heard_s[member] = now_s

    def heard_s(self, members: Collection[str]) -> float:
        """By when each of these has said so, or more, since the last round was complete; 0 where one has not."""
        heard_s = min((self._heard_s.get(member, 0.0) for member in members), default=0.0)
        return heard_s if self.last is None or heard_s > self.last.finished_s else 0.0

    def add(self, report: Report) -> ReportedRound | None:
        """Take a report; the round, when it was the last one of it. ValueError when the member reported it before."""
        past = next((done for done in self.complete[-8:] if done.number == report.round), None)
        known = past.reports if past is not None else self._open.get(report.round, {})
        if report.member in known:
            raise ValueError(f"{report.member} reported round {report.round} twice")
        if past is not None:
            return None  # it was not expected any more
        self._open.setdefault(report.round, {})[report.member] = report
        return self._completed(report.round)

    def recheck(self) -> list[ReportedRound]:
        """Fewer are expected now: the rounds that lacked nobody else."""
        return [done for number in sorted(self._open) if (done := self._completed(number)) is not None]

    def _completed(self, number: int) -> ReportedRound | None:
        """The round, if all have reported it. Older ones, whose reports a controller missed, are given up then."""
        reports = self._open.get(number)
        if reports is None or not self._expected(max(report.epoch for report in reports.values())) <= reports.keys():
            return None
        done = ReportedRound(number, reports)
        self._open = {other: reports for other, reports in self._open.items() if other > number}
        self.complete.append(done)
        return done

    def whole_s(self, first: int, epoch: int) -> list[float]:
        """Seconds from the end of one round to that of the next, for those rounds from the `first`th complete one on
        that went by the plan of this epoch, as the one before did."""
        return [
            after.finished_s - before.finished_s
            for before, after in pairwise(self.complete[max(first - 1, 0) :])
            if before.epoch == after.epoch == epoch
        ]

    def compute_s(self) -> dict[str, float]:
        """Seconds between the end of a member's round and the begin of its next: the median over the newest ones."""
        gaps: dict[str, list[float]] = {}
        for before, after in pairwise(self.complete[-COMPUTED - 1 :]):
            for member, report in after.reports.items():
                if member in before.reports:
                    gaps.setdefault(member, []).append(report.started_s - before.reports[member].finished_s)
        return {member: max(median(its), 0.0) for member, its in gaps.items()}

    @property
    def last(self) -> ReportedRound | None:
        """The newest complete round."""
        return self.complete[-1] if self.complete else None
