"""Rounds as the controller sees them: each member's report, what follows when all have reported, and who is heard of
while one takes long.

What is kept is bounded. A round's reports are whole until it is complete; of complete rounds the newest are known in
short. Everything that was ever reported is in the run's rounds.jsonl.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from msgspec.structs import replace

from testbed.controller.model.contradiction import Contradiction
from testbed.planning import Pair
from testbed.protocol import PeerSample, Report, Train
from testbed.telemetry.round_span import RoundSpan, span_of

#: Rounds over which it is looked how long members compute: now and then one evaluates its model too.
COMPUTED = 8

#: Complete rounds that are known in short: what judges plans looks at the newest dozens, who watches asks more often.
KEPT_ROUNDS = 1000

#: Reports of one member that wait for those of others. One whose group is fast is ahead of the other groups by up to
#: the period of a plan with groups, and of a member that lost its line by what that did not tell.
KEPT_REPORTS = 1000
#: Trains in them, of which the newest say enough: 10 MB.
KEPT_TRAINS = 50_000

#: Nobody is further ahead of all others: a round needs everybody's update. A member whose line breaks is heard of
#: again, or lost, within a lease; 5 s of it are 10,000 rounds where each takes 0.5 ms.
MOST_AHEAD = 10_000


@dataclass(frozen=True, slots=True)
class ReportedRound:
    """A round that all members have reported."""

    number: int
    reports: Mapping[str, Report]

    def summary(self) -> RoundSummary:
        """It in short."""
        its = self.reports.values()
        span = span_of((report.started_s, report.finished_s) for report in its)
        return RoundSummary(
            number=self.number,
            epoch=max(report.epoch for report in its),
            began_s=min(report.started_s for report in its),
            entered_s=span.entered_s,
            finished_s=span.finished_s,
            lost=sum(report.lost for report in its),
            duplicated=sum(report.duplicated for report in its),
            metrics=means(its),
        )

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
        return {member: rate for member, rate in found.items() if rate is not None and rate > 0}


@dataclass(frozen=True, slots=True)
class RoundSummary:
    """A complete round. Its first member entered it at `began_s`, its last at `entered_s`, and the last finished it at
    `finished_s` (Unix time).

    `epoch` is that of the plan it went by. `lost` and `duplicated` are updates that a member's result did not hold, or
    held twice, over all members; `metrics` are the mean over those members that reported them.
    """

    number: int
    epoch: int
    began_s: float
    entered_s: float
    finished_s: float
    lost: int = 0
    duplicated: int = 0
    metrics: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """The length of the round, as `telemetry.round_span` defines it."""
        return RoundSpan(self.entered_s, self.finished_s).seconds

    def to_json(self) -> dict[str, Any]:
        """It for those who watch."""
        return {
            "round": self.number,
            "epoch": self.epoch,
            "entered_s": self.entered_s,
            "finished_s": self.finished_s,
            "seconds": self.seconds,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "metrics": dict(self.metrics),
        }


def means(reports: Collection[Report]) -> dict[str, float | None]:
    """The mean of each metric over the reports that have it; None where one of them is not finite."""
    values: dict[str, list[float | None]] = {}
    for report in reports:
        for name, value in report.metrics.items():
            values.setdefault(name, []).append(value)
    return {name: _mean(found) for name, found in values.items()}


def _mean(values: list[float | None]) -> float | None:
    finite = [value for value in values if value is not None]
    return sum(finite) / len(finite) if len(finite) == len(values) else None


class RoundLog:
    """Gathers reports into rounds; `expected` says who takes part under the plan of an epoch, and is still there.

    `complete` are the newest rounds of those that are, `count` says how many there were.
    """

    def __init__(self, expected: Callable[[int], frozenset[str]]) -> None:
        self.complete: list[RoundSummary] = []
        self.count = 0
        self.lost = 0
        self.duplicated = 0
        self._expected = expected
        self._pending: dict[str, _PendingReports] = {}
        self._came: Counter[int] = Counter()  # reports of rounds that are not complete; also of members gone since
        self._said: dict[str, int] = {}
        self._heard_s: dict[str, float] = {}
        self._timings: deque[dict[str, tuple[float, float]]] = deque(maxlen=COMPUTED + 1)
        self._of_epoch: Counter[int] = Counter()

    @property
    def newest(self) -> int:
        """The newest round that any member who is there has reported. All have contributed to it."""
        return max(self._said.values(), default=0)

    def hear(self, member: str, now_s: float) -> None:
        """A member says that it is still in a round."""
        self._heard_s[member] = now_s

    def heard_s(self, members: Collection[str]) -> float:
        """By when each of these has said so, or more, since the last round was complete; 0 where one has not."""
        heard_s = min((self._heard_s.get(member, 0.0) for member in members), default=0.0)
        return heard_s if self.last is None or heard_s > self.last.finished_s else 0.0

    def add(self, report: Report) -> ReportedRound | None:
        """Take a report; the round, when it was the last one of it. Contradiction when the member can't be there."""
        self._check(report)
        self._said[report.member] = report.round
        if self.last is not None and report.round <= self.last.number:
            return None  # it was not expected any more
        self._pending.setdefault(report.member, _PendingReports()).add(report)
        self._came[report.round] += 1
        enough = self._came[report.round] >= len(self._expected(report.epoch))
        return self._completed(report.round) if enough else None

    def forget(self, gone: Collection[str]) -> None:
        """These members are gone. One that comes under such a name begins where the others are by then."""
        for member in gone:
            self._said.pop(member, None)
            self._heard_s.pop(member, None)
            self._pending.pop(member, None)

    def recheck(self) -> list[ReportedRound]:
        """Fewer are expected now: the rounds that lacked nobody else."""
        numbers = sorted({number for its in self._pending.values() for number in its.reports})
        return [done for number in numbers if (done := self._completed(number)) is not None]

    def _check(self, report: Report) -> None:
        before = self._said.get(report.member)
        if before == report.round:
            raise Contradiction(
                f"it reported round {report.round} twice", rule="twice", member=report.member, round=report.round
            )
        if before is not None and report.round < before:
            raise Contradiction(
                f"it reported round {report.round} after round {before}",
                rule="order",
                member=report.member,
                round=report.round,
            )
        if report.round <= MOST_AHEAD:
            return
        others = max((number for member, number in self._said.items() if member != report.member), default=None)
        if others is not None and report.round > others + MOST_AHEAD:
            raise Contradiction(
                f"it reported round {report.round} while the others are in round {others}",
                rule="ahead",
                member=report.member,
                round=report.round,
            )

    def _completed(self, number: int) -> ReportedRound | None:
        """The round, if all have reported it. Older ones, whose reports a controller missed, are given up then."""
        found = {member: its.reports[number] for member, its in self._pending.items() if number in its.reports}
        if not found or not self._expected(max(report.epoch for report in found.values())) <= found.keys():
            return None
        for its in self._pending.values():
            its.drop_until(number)
        for older in [older for older in self._came if older <= number]:
            del self._came[older]
        done = ReportedRound(number, found)
        self._note(done)
        return done

    def _note(self, done: ReportedRound) -> None:
        summary = done.summary()
        self.complete.append(summary)
        del self.complete[:-KEPT_ROUNDS]
        self.count += 1
        self.lost += summary.lost
        self.duplicated += summary.duplicated
        self._of_epoch[summary.epoch] += 1
        self._timings.append({member: (its.started_s, its.finished_s) for member, its in done.reports.items()})

    def under(self, epoch: int) -> int:
        """How many complete rounds went by the plan of an epoch."""
        return self._of_epoch[epoch]

    def whole_s(self, first: int, epoch: int) -> list[float]:
        """Seconds from the end of one round to that of the next, for those rounds from the `first`th complete one on
        that went by the plan of this epoch, as the one before did; as far as they are kept."""
        oldest = self.count - len(self.complete)
        return [
            after.finished_s - before.finished_s
            for before, after in pairwise(self.complete[max(first - 1 - oldest, 0) :])
            if before.epoch == after.epoch == epoch
        ]

    def newest_whole(self, most: int, first: int, epoch: int) -> list[tuple[float, float]]:
        """Return when each of the newest whole rounds began and ended, at most so many, as `whole_s` counts them."""
        oldest = self.count - len(self.complete)
        return [
            (before.finished_s, after.finished_s)
            for before, after in pairwise(self.complete[max(first - 1 - oldest, 0) :])
            if before.epoch == after.epoch == epoch
        ][-most:]

    def compute_s(self) -> dict[str, float]:
        """Seconds between the end of a member's round and the begin of its next: the median over the newest ones."""
        gaps: dict[str, list[float]] = {}
        for before, after in pairwise(self._timings):
            for member, (started_s, _) in after.items():
                if member in before:
                    gaps.setdefault(member, []).append(started_s - before[member][1])
        return {member: max(median(its), 0.0) for member, its in gaps.items()}

    @property
    def last(self) -> RoundSummary | None:
        """The newest complete round."""
        return self.complete[-1] if self.complete else None


class _PendingReports:
    """One member's, by round, that wait for those of others. Of too many the newest stay: whoever does not report the
    oldest ones missed them, and they are given up anyway."""

    def __init__(self) -> None:
        self.reports: dict[int, Report] = {}
        self._trains = 0

    def add(self, report: Report) -> None:
        """Take the newest. Whose updates its means are of is on record, and of no more use."""
        self.reports[report.round] = replace(report, slices=())
        self._trains += _trains(report)
        while len(self.reports) > KEPT_REPORTS or (self._trains > KEPT_TRAINS and len(self.reports) > 1):
            self._drop(next(iter(self.reports)))

    def drop_until(self, number: int) -> None:
        """Those of rounds up to this one are of no more use."""
        for older in [older for older in self.reports if older <= number]:
            self._drop(older)

    def _drop(self, number: int) -> None:
        self._trains -= _trains(self.reports.pop(number))


def _trains(report: Report) -> int:
    return sum(map(len, report.arrivals.values()))
