"""What a run comes to: its figures from its records. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

from testbed.controller.model.plan_history import pause_ms
from testbed.telemetry.round_span import RoundSpan, span_of

Record = Mapping[str, Any]

#: The longest that the start of programs which are not ours may take: torchrun imports PyTorch twice, on a host that is
#: busy with several workers. The start is no part of their training.
START_S = 30.0


@dataclass(frozen=True, slots=True)
class RoundFigures:
    """One round over all members. Times are Unix seconds."""

    number: int
    epoch: int
    entered_s: float
    finished_s: float
    lost: int
    duplicated: int

    @property
    def seconds(self) -> float:
        """The length of the round, as `telemetry.round_span` defines it."""
        return RoundSpan(self.entered_s, self.finished_s).seconds


def rounds_of(reports: Sequence[Record], members: int) -> list[RoundFigures]:
    """The rounds that at least `members` members have reported, in order."""
    by_round: dict[int, list[Record]] = {}
    for report in reports:
        by_round.setdefault(report["round"], []).append(report)
    return [_figures(number, found) for number, found in sorted(by_round.items()) if len(found) >= members]


def _figures(number: int, reports: Sequence[Record]) -> RoundFigures:
    span = span_of((report["started_s"], report["finished_s"]) for report in reports)
    return RoundFigures(
        number=number,
        epoch=max(report["epoch"] for report in reports),
        entered_s=span.entered_s,
        finished_s=span.finished_s,
        lost=sum(report["lost"] for report in reports),
        duplicated=sum(report["duplicated"] for report in reports),
    )


def fewest(members: int, passages: Sequence[Record]) -> int:
    """The least number of `members` that were there at a time: who was lost reports no round."""
    there = [members]
    for passage in passages:
        there.append(there[-1] + (1 if passage["kind"] == "came" else -1))
    return min(there)


def percentile(values: Sequence[float], percent: int) -> float | None:
    """By linear interpolation; None of nothing."""
    if not values:
        return None
    if len(values) == 1:
        return values[0]
    return float(quantiles(values, n=100, method="inclusive")[percent - 1])


def pause_around(rounds: Sequence[RoundFigures], began_s: float, ended_s: float) -> float | None:
    """Milliseconds by which what happened in [began_s, ended_s] made a round longer, as `pause_ms` has it."""
    finished = [r.finished_s for r in rounds]
    return pause_ms(finished, bisect_left(finished, began_s), bisect_left(finished, ended_s))


def pause_at(rounds: Sequence[RoundFigures], number: int) -> float | None:
    """Milliseconds by which round `number` was longer for being the first under its plan, as `pause_ms` has it."""
    return pause_ms([r.finished_s for r in rounds], bisect_left([r.number for r in rounds], number))


def updates_around(rounds: Sequence[RoundFigures], began_s: float, ended_s: float) -> tuple[int, int]:
    """(lost, duplicated) updates in the rounds that overlap [began_s, ended_s], and in the one after them."""
    touched = [r for r in rounds if r.finished_s >= began_s and r.entered_s <= ended_s]
    touched += [r for r in rounds if r.entered_s > ended_s][:1]
    return sum(r.lost for r in touched), sum(r.duplicated for r in touched)


def last_metric(reports: Sequence[Record], name: str) -> float | None:
    """The newest value of a metric, averaged over the members that gave it in that round."""
    found = [(r["round"], r["metrics"][name]) for r in reports if r["metrics"].get(name) is not None]
    if not found:
        return None
    newest = max(number for number, _ in found)
    values: list[float] = [value for number, value in found if number == newest]
    return sum(values) / len(values)


def start_seconds(samples: Sequence[Record], began_s: float) -> float:
    """Return how long after `began_s` programs started, imported and computed before they first used a link: START_S at
    most, and to the second, since samples are a second apart."""
    last: Mapping[str, int] = {}
    for number, sample in enumerate(samples):
        used = any(count > last.get(link, 0) for link, count in sample["bytes"].items())
        if number > 0 and used and sample["at_s"] >= began_s:
            return _start_until(samples[number - 1], began_s)
        last = sample["bytes"]
    return _start_until(samples[-1], began_s) if samples else 0.0


def _start_until(sample: Record, began_s: float) -> float:
    return min(START_S, max(0.0, float(sample["at_s"]) - began_s))


def wan_bytes(samples: Sequence[Record], began_s: float) -> int:
    """Bytes that arrived over all WAN links from `began_s` on; a link's count begins anew when it is made anew.

    The first sample is where counting starts; a link that comes later has counted from nothing.
    """
    total, last = 0, dict[str, int]()
    for number, sample in enumerate(samples):
        for link, count in sample["bytes"].items():
            since = last.get(link, 0)
            if number > 0 and sample["at_s"] >= began_s:
                total += count - since if count >= since else count
            last[link] = count
    return total
