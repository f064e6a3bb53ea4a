"""The drift of members and groups from the mean at each merge, by round and fragment. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median
from typing import Any

from testbed.telemetry.averages import mean_of_known

Record = Mapping[str, Any]

#: The members of each group in an epoch.
Groups = Callable[[int], Mapping[str, Sequence[str]]]


@dataclass(frozen=True, slots=True)
class MergeDrift:
    """One merge of a fragment. Distances are Euclidean, over the fragment's parameters."""

    round: int
    fragment: int
    #: The end of the merge (Unix seconds).
    at_s: float
    #: The distance of the merged mean from the parameters that all began with.
    moved: float
    #: The distance of each member from the mean, and that of each group's mean, which is an estimate (within 10 %).
    members: Mapping[str, float]
    groups: Mapping[str, float]
    #: The mean loss of the members at their own parameters, and at the merged ones; None if it was not measured.
    loss_before: float | None
    loss_after: float | None

    @property
    def apart(self) -> float:
        """The root mean square of the members' distances from the mean."""
        return sqrt(sum(its**2 for its in self.members.values()) / len(self.members))


def merges(reports: Iterable[Record], groups: Groups) -> list[MergeDrift]:
    """Return how far members were apart at each merge that they reported, ordered by round and fragment."""
    reported: dict[tuple[int, int], dict[str, tuple[Record, Record]]] = defaultdict(dict)
    for report in reports:
        for drift in report.get("drift", ()):
            reported[report["round"], drift["fragment"]][report["member"]] = (report, drift)
    return [_merge(number, fragment, by, groups) for (number, fragment), by in sorted(reported.items())]


def _merge(number: int, fragment: int, reported: Mapping[str, tuple[Record, Record]], groups: Groups) -> MergeDrift:
    drifts = {member: drift for member, (_, drift) in reported.items()}
    epoch = max(report["epoch"] for report, _ in reported.values())
    there = {name: [drifts[its] for its in members if its in drifts] for name, members in groups(epoch).items()}
    return MergeDrift(
        round=number,
        fragment=fragment,
        at_s=max(report["finished_s"] for report, _ in reported.values()),
        moved=median(drift["moved"] for drift in drifts.values()),
        members={member: drift["apart"] for member, drift in drifts.items()},
        groups={name: _distance(its) for name, its in there.items() if its},
        loss_before=mean_of_known(drift["loss_before"] for drift in drifts.values()),
        loss_after=mean_of_known(drift["loss_after"] for drift in drifts.values()),
    )


def _distance(drifts: Sequence[Record]) -> float:
    """Return the distance of some members' mean from the mean of all.

    For several members it is an estimate from the random projections that each reports of its distance, its `sketch`
    (Charikar, Chen and Farach-Colton 2002).
    """
    if len(drifts) == 1:
        return float(drifts[0]["apart"])
    weight = sum(drift["weight"] for drift in drifts) or 1.0
    sums = zip(*([drift["weight"] * value for value in drift["sketch"]] for drift in drifts), strict=True)
    return sqrt(sum((sum(its) / weight) ** 2 for its in sums))


def summary(found: Sequence[MergeDrift]) -> dict[str, Any] | None:
    """Return the summary's `sync.drift`, or None if nothing was merged.

    Returns:
        `members` and `groups`: their distances from the mean as a fraction of how far the mean moved, medians over the
        merges. `loss`: the mean change of the members' losses by a merge.
    """
    moved = [its for its in found if its.moved]
    if not moved:
        return None
    names = sorted({name for its in moved for name in its.groups})
    gains = [
        its.loss_after - its.loss_before for its in found if its.loss_before is not None and its.loss_after is not None
    ]
    return {
        "members": median(its.apart / its.moved for its in moved),
        "groups": {name: median(its.groups[name] / its.moved for its in moved if name in its.groups) for name in names},
        "loss": mean_of_known(gains),
    }
