"""How far members and groups stood from the mean of all when they merged, by round and fragment. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median
from typing import Any

Record = Mapping[str, Any]

#: The members of each group in an epoch.
Groups = Callable[[int], Mapping[str, Sequence[str]]]


@dataclass(frozen=True, slots=True)
class MergeDrift:
    """One merge of a fragment, which ended at `at_s` (Unix time).

    moved        how far the mean of all was from where all began
    members      how far each member stood from the mean, `groups` the mean of each group, within a tenth
    loss_before  the mean of members' losses at their own parameters, `loss_after` at those that all have then; None
                 where they did not measure it
    """

    round: int
    fragment: int
    at_s: float
    moved: float
    members: Mapping[str, float]
    groups: Mapping[str, float]
    loss_before: float | None
    loss_after: float | None

    @property
    def apart(self) -> float:
        """How far a member stood from the mean: root mean square."""
        return sqrt(sum(its**2 for its in self.members.values()) / len(self.members))


def merges(reports: Iterable[Record], groups: Groups) -> list[MergeDrift]:
    """All merges that members told of, in order."""
    told: dict[tuple[int, int], dict[str, tuple[Record, Record]]] = defaultdict(dict)
    for report in reports:
        for drift in report.get("drift", ()):
            told[report["round"], drift["fragment"]][report["member"]] = (report, drift)
    return [_merge(number, fragment, by, groups) for (number, fragment), by in sorted(told.items())]


def _merge(number: int, fragment: int, told: Mapping[str, tuple[Record, Record]], groups: Groups) -> MergeDrift:
    drifts = {member: drift for member, (_, drift) in told.items()}
    epoch = max(report["epoch"] for report, _ in told.values())
    there = {name: [drifts[its] for its in members if its in drifts] for name, members in groups(epoch).items()}
    return MergeDrift(
        round=number,
        fragment=fragment,
        at_s=max(report["finished_s"] for report, _ in told.values()),
        moved=median(drift["moved"] for drift in drifts.values()),
        members={member: drift["apart"] for member, drift in drifts.items()},
        groups={name: _length(its) for name, its in there.items() if its},
        loss_before=_mean(drift["loss_before"] for drift in drifts.values()),
        loss_after=_mean(drift["loss_after"] for drift in drifts.values()),
    )


def _length(drifts: Sequence[Record]) -> float:
    """How far the mean of some members stood: of one what it says, of more by their random sums."""
    if len(drifts) == 1:
        return float(drifts[0]["apart"])
    weight = sum(drift["weight"] for drift in drifts) or 1.0
    sums = zip(*([drift["weight"] * value for value in drift["sketch"]] for drift in drifts), strict=True)
    return sqrt(sum((sum(its) / weight) ** 2 for its in sums))


def summary(found: Sequence[MergeDrift]) -> dict[str, Any] | None:
    """What the summary's `sync.drift` says; None where nothing was merged.

    `members` and `groups` are how far these stood from the mean, as a part of how far that had moved: medians over
    merges; `loss` what a merge added to the members' losses, in the mean.
    """
    moved = [its for its in found if its.moved]
    if not moved:
        return None
    names = sorted({name for its in moved for name in its.groups})
    gains = [its.loss_after - its.loss_before for its in found if its.loss_before is not None and its.loss_after]
    return {
        "members": median(its.apart / its.moved for its in moved),
        "groups": {name: median(its.groups[name] / its.moved for its in moved if name in its.groups) for name in names},
        "loss": _mean(gains),
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
