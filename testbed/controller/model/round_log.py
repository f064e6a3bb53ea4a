"""The round log: gathers the members' reports into rounds.

Memory is bounded. Reports are kept whole until their round is complete; of complete rounds the newest are kept as
summaries. The run's rounds.jsonl has every report.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, pairwise
from math import isclose
from statistics import fmean, median
from typing import Any

from msgspec.structs import replace

from testbed.controller.model.actions import Contradiction
from testbed.planning import Pair
from testbed.protocol import PeerSample, Report, Train
from testbed.telemetry.averages import means_if_all
from testbed.telemetry.round_span import RoundSpan, span_of

#: Rounds whose median says how long members compute. In some rounds a member also evaluates its model.
COMPUTED = 8

#: The newest rounds whose sizes are compared, and the fraction by which sizes of the same bucket may differ.
SIZED, ALIKE = 12, 0.02

#: Summaries of complete rounds that are kept. Plans are judged by the newest dozens, and observers ask more often.
KEPT_ROUNDS = 1000

#: Reports of one member that wait for reports of others. A member of a fast group is ahead of the other groups by up to
#: the period of a plan with groups, and ahead of a member that lost its connection by the rounds it did not report.
KEPT_REPORTS = 1000
#: Packet trains in those reports, 10 MB. The newest trains say enough.
KEPT_TRAINS = 50_000

#: Rounds that a member can be ahead of all others, since a round needs each member's update. A member whose connection
#: breaks reconnects or is lost within a lease; a lease of 5 s is 10,000 rounds of 0.5 ms.
MOST_AHEAD = 10_000


@dataclass(frozen=True, slots=True)
class ReportedRound:
    """A round that all members have reported."""

    number: int
    reports: Mapping[str, Report]

    def summary(self) -> RoundSummary:
        """Return the round's plan epoch and times, its lost and duplicated updates, and its mean metrics."""
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
            metrics=means_if_all(report.metrics for report in its),
        )

    def samples(self) -> dict[Pair, PeerSample]:
        """Return each edge's transfer in this round, by (sender, receiver)."""
        return {(member, sample.peer): sample for member, report in self.reports.items() for sample in report.peers}

    def arrivals(self) -> dict[Pair, tuple[Train, ...]]:
        """Return the packet trains that arrived over each edge in this round, by (sender, receiver)."""
        return {
            (peer, member): trains
            for member, report in self.reports.items()
            for peer, trains in report.arrivals.items()
        }

    def rates(self) -> dict[str, float]:
        """Return the samples per second of each member that reports them."""
        found = {member: report.metrics.get("samples_per_s") for member, report in self.reports.items()}
        return {member: rate for member, rate in found.items() if rate is not None and rate > 0}


@dataclass(frozen=True, slots=True)
class RoundSummary(RoundSpan):
    """The summary of a complete round. Times are Unix seconds."""

    number: int
    #: The epoch of the round's plan.
    epoch: int
    #: When the first member entered the round.
    began_s: float
    #: Updates that members' results did not hold, over all members.
    lost: int = 0
    #: Updates that members' results held twice, over all members.
    duplicated: int = 0
    #: Each metric's mean over the members that reported it.
    metrics: Mapping[str, float | None] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the summary for observers, as JSON."""
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


class RoundLog:
    """Gathers the members' reports into rounds, and keeps the figures of the newest rounds.

    Args:
        expected: Returns the members of an epoch's plan that are still present.
    """

    def __init__(self, expected: Callable[[int], frozenset[str]]) -> None:
        #: The newest complete rounds.
        self.complete: list[RoundSummary] = []
        #: The number of all complete rounds.
        self.count = 0
        self.lost = 0
        self.duplicated = 0
        #: Whether members take steps while a round is reduced. Reports then say for how long they compute.
        self.overlaps = False
        #: Whether rounds may differ in size: a program reduces what it likes, such as the buckets of a model.
        self.mixed = False
        #: The number of rounds after which sizes repeat, at most SIZED; 1 unless rounds are `mixed`.
        self.cycle = 1
        self._sizes: deque[float] = deque(maxlen=SIZED)
        self._expected = expected
        self._pending: dict[str, _PendingReports] = {}
        self._report_counts: Counter[int] = Counter()  # reports of incomplete rounds, those of lost members included
        self._newest_reported: dict[str, int] = {}
        self._timings: deque[dict[str, tuple[float, float, float]]] = deque(maxlen=max(COMPUTED, SIZED) + 1)
        self._epoch_counts: Counter[int] = Counter()  # of the newest KEPT_ROUNDS epochs

    @property
    def newest(self) -> int:
        """The newest round that any present member has reported. All members have contributed to it."""
        return max(self._newest_reported.values(), default=0)

    def add(self, report: Report) -> ReportedRound | None:
        """Add a member's report, and return its round if the report completes it.

        Returns:
            The round if this report completes it, else None.

        Raises:
            Contradiction: The member can't be in that round.
        """
        self._check(report)
        self._newest_reported[report.member] = report.round
        if self.last is not None and report.round <= self.last.number:
            return None  # a late report of a complete round
        self._pending.setdefault(report.member, _PendingReports()).add(report)
        self._report_counts[report.round] += 1
        enough = self._report_counts[report.round] >= len(self._expected(report.epoch))
        return self._completed(report.round) if enough else None

    def forget(self, gone: Collection[str]) -> None:
        """Drop the reports of lost members. A new member of such a name begins in the others' current round."""
        for member in gone:
            self._newest_reported.pop(member, None)
            self._pending.pop(member, None)

    def recheck(self) -> list[ReportedRound]:
        """Return the rounds that are complete now that fewer members are expected."""
        numbers = sorted({number for its in self._pending.values() for number in its.reports})
        return [done for number in numbers if (done := self._completed(number)) is not None]

    def _check(self, report: Report) -> None:
        number, before = report.round, self._newest_reported.get(report.member)
        if before == number:
            rule, text = "twice", f"it reported round {number} twice"
        elif before is not None and number < before:
            rule, text = "order", f"it reported round {number} after round {before}"
        elif self._is_ahead(report):
            others = max(newest for member, newest in self._newest_reported.items() if member != report.member)
            rule, text = "ahead", f"it reported round {number} while the other members are in round {others}"
        else:
            return
        raise Contradiction(text, rule=rule, member=report.member, round=number, epoch=report.epoch)

    def _is_ahead(self, report: Report) -> bool:
        """Return whether the report is too far ahead of all other members. As a rule one of them is looked at."""
        others = (newest for member, newest in self._newest_reported.items() if member != report.member)
        first = next(others, None)
        return first is not None and all(report.round > newest + MOST_AHEAD for newest in chain((first,), others))

    def _completed(self, number: int) -> ReportedRound | None:
        """Return the round if all members have reported it. Drops older rounds then: some of their reports are lost."""
        found = {member: its.reports[number] for member, its in self._pending.items() if number in its.reports}
        if not found or not self._expected(max(report.epoch for report in found.values())) <= found.keys():
            return None
        for its in self._pending.values():
            its.drop_until(number)
        for older in [older for older in self._report_counts if older <= number]:
            del self._report_counts[older]
        done = ReportedRound(number, found)
        summary = done.summary()
        self.complete.append(summary)
        del self.complete[:-KEPT_ROUNDS]
        self.count += 1
        self.lost += summary.lost
        self.duplicated += summary.duplicated
        if self.mixed and self.count > 1 and len(found) > 1:
            # A plan's trees span all members: over each edge of a tree its share goes up, and comes down.
            self._sizes.append(sum(report.sent_bytes for report in found.values()) / (2 * (len(found) - 1)))
            self.cycle = _cycle(self._sizes)
        self._epoch_counts[summary.epoch] += 1
        if len(self._epoch_counts) > KEPT_ROUNDS:
            del self._epoch_counts[next(iter(self._epoch_counts))]
        self._timings.append(
            {member: (its.started_s, its.finished_s, its.compute_s + its.paced_s) for member, its in found.items()}
        )
        return done

    def count_under(self, epoch: int) -> int:
        """Return the number of complete rounds under the plan of an epoch, one of the newest KEPT_ROUNDS."""
        return self._epoch_counts[epoch]

    def whole_s(self, first: int, epoch: int, period: int = 1) -> list[float]:
        """Return the whole times of rounds, in seconds from the end of one round to the end of the next.

        If sizes repeat after a `cycle`, each time is the mean of a cycle. If members take steps during rounds and the
        plan has groups, the times are from begin to begin, see `newest_whole`.

        Args:
            first: The index of the first complete round to count.
            epoch: Only rounds under this epoch's plan count, whose previous round was under the same plan.
            period: The plan's period: only rounds among all members count.
        """
        whole = self.newest_whole(self.count, first, epoch, period)
        return [(ended_s - began_s) / self.cycle_of(period) for began_s, ended_s in whole]

    def cycle_of(self, period: int) -> int:
        """Return the number of rounds in a whole time under a plan of this period: a `cycle`, or one among all."""
        return self.cycle if period == 1 else 1

    def newest_whole(self, most: int, first: int, epoch: int, period: int = 1) -> list[tuple[float, float]]:
        """Return the begin and end of the newest whole rounds, at most `most` of them, counted as `whole_s` does.

        If sizes repeat after a `cycle`, these are the begin and end of cycles. If members take steps during rounds, a
        round in a group may end long before the next one begins: then the whole times are from begin to begin.
        """
        oldest, cycle = self.count - len(self.complete), self.cycle_of(period)
        if self.overlaps and period > 1:
            return [
                (one.entered_s, after.entered_s)
                for one, after in pairwise(self.complete[max(first - oldest, 0) :])
                if one.epoch == after.epoch == epoch and one.number % period == 0
            ][-most:]
        ends = self.complete[max(first - cycle - oldest, 0) :][::-cycle][::-1]
        return [
            (before.finished_s, after.finished_s)
            for before, after in pairwise(ends)
            if before.epoch == after.epoch == epoch and after.number % period == 0
        ][-most:]

    def compute_s(self) -> dict[str, float]:
        """Return each member's median seconds from the end of a round to the next start, over COMPUTED rounds.

        If sizes repeat after a `cycle`, these are the mean seconds: members compute before some of its rounds only. If
        members take steps during rounds, these are the mean seconds of their steps: some reports may be without steps.
        """
        usual = median if self.cycle == 1 and not self.overlaps else fmean
        newest = COMPUTED if self.cycle == 1 else SIZED // self.cycle * self.cycle
        gaps: dict[str, list[float]] = {}
        for before, after in pairwise(self._timings):
            for member, (started_s, _, computed_s) in after.items():
                if member in before:
                    gap_s = max(started_s - before[member][1], 0.0)  # rounds may overlap
                    gaps.setdefault(member, []).append(computed_s if self.overlaps else gap_s)
        return {member: usual(its[-newest:]) for member, its in gaps.items()}

    @property
    def round_bytes(self) -> int:
        """The mean bytes that a member contributes to a round of the newest cycle; 0 before the second round.

        The first round does not count: members may only compare their parameters in it.
        """
        newest = [*self._sizes][-self.cycle :]
        return round(fmean(newest)) if newest else 0

    @property
    def last(self) -> RoundSummary | None:
        """The newest complete round, or None before the first."""
        return self.complete[-1] if self.complete else None


class _PendingReports:
    """One member's reports of incomplete rounds, by round.

    If there are too many, the oldest are dropped: the members that have not reported those rounds missed them, so that
    the rounds are never complete.
    """

    def __init__(self) -> None:
        self.reports: dict[int, Report] = {}
        self._trains = 0

    def add(self, report: Report) -> None:
        """Add the newest report, without its slices: rounds.jsonl has them, and nothing else needs them."""
        self.reports[report.round] = replace(report, slices=())
        self._trains += _trains(report)
        while len(self.reports) > KEPT_REPORTS or (self._trains > KEPT_TRAINS and len(self.reports) > 1):
            self._drop(next(iter(self.reports)))

    def drop_until(self, number: int) -> None:
        """Drop the reports of rounds up to this one."""
        for older in [older for older in self.reports if older <= number]:
            self._drop(older)

    def _drop(self, number: int) -> None:
        self._trains -= _trains(self.reports.pop(number))


def _cycle(newest: Iterable[float]) -> int:
    """Return the number after which the sizes repeat, or the number of all sizes if they do not."""
    sizes = [*newest]
    lengths = range(1, len(sizes) // 2 + 1)
    alike = partial(isclose, rel_tol=ALIKE)
    return next((length for length in lengths if all(map(alike, sizes, sizes[length:]))), len(sizes))


def _trains(report: Report) -> int:
    return sum(map(len, report.arrivals.values()))
