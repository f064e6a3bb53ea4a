"""How far members and groups stood from the mean of all when they merged, and what that did to the loss."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from msgspec import to_builtins

from testbed.report.figures.canvas import (
    BLUE,
    CYCLE,
    MUTED,
    ORANGE,
    TIME_LEFT,
    TIME_RIGHT,
    Drawing,
    new_figure,
    over_time,
    style,
)
from testbed.report.member import site_of
from testbed.report.record import RunRecord
from testbed.run.conclusion.drift import MergeDrift, merges, summary


def draw_drift(record: RunRecord) -> Drawing | None:
    """Distances from the mean above, a line a fragment, the loss before and after merges below."""
    found = drift_of(record)
    if not found:
        return None
    losses = [its for its in found if its.loss_before is not None and its.loss_after is not None]
    with style():
        count = 2 if losses else 1
        figure = new_figure(1.9 * count + 0.75)
        figure.subplots_adjust(TIME_LEFT, 0.42 / figure.get_figheight(), TIME_RIGHT, 1 - 0.35 / figure.get_figheight())
        axes = figure.subplots(count, sharex=True, squeeze=False)[:, 0].tolist()
        _distances(axes[0], record, found)
        if losses:
            at = [its.at_s - record.zero_s for its in losses]
            axes[1].plot(at, [its.loss_before for its in losses], color=ORANGE, label="loss before merges")
            axes[1].plot(at, [its.loss_after for its in losses], color=BLUE, label="after them")
            axes[1].legend(loc="upper right", ncols=2)
        over_time(axes[-1], record.end_s)
        return Drawing(figure, "drift", "How far members stood apart when they merged", _words(found))


def drift_of(record: RunRecord) -> list[MergeDrift]:
    """All merges of a run; groups are the plan's, or the sites where it has none."""

    def groups(epoch: int) -> dict[str, Sequence[str]]:
        plan = record.plans.get(epoch)
        if plan is not None and plan.groups:
            return {f"group of {group.members[0]}": group.members for group in plan.groups}
        sites: dict[str, list[str]] = {}
        for member in record.members:
            sites.setdefault(site_of(member), []).append(member)
        return dict(sites)

    return merges((to_builtins(report) for report in record.reports if report.drift), groups)


def _distances(axes: Axes, record: RunRecord, found: Sequence[MergeDrift]) -> None:
    """Members' root mean square, in a band from the nearest to the furthest, and the groups; the same colours for each
    fragment. Of more groups than there are colours those after the last have none."""
    names = dict(zip(sorted({name for its in found for name in its.groups}), CYCLE, strict=False))
    for fragment in sorted({its.fragment for its in found}):
        part = [its for its in found if its.fragment == fragment]
        at = [its.at_s - record.zero_s for its in part]
        nearest, furthest = ([which(its.members.values()) for its in part] for which in (min, max))
        axes.fill_between(at, nearest, furthest, color=MUTED, alpha=0.15, linewidth=0)
        axes.plot(at, [its.apart for its in part], color=MUTED, label="" if fragment else "members", zorder=3)
        for name, colour in names.items():
            there = [(when, its.groups[name]) for when, its in zip(at, part, strict=True) if name in its.groups]
            axes.plot(
                [when for when, _ in there],
                [length for _, length in there],
                color=colour,
                linewidth=0.9,
                label="" if fragment else name,
            )
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper right", ncols=4)


def _words(found: Sequence[MergeDrift]) -> str:
    said = summary(found)
    if said is None:
        return "Nothing had moved when members merged."
    words = f"In the median members stood {said['members']:.2g} of the way that their mean had gone from it"
    if said["groups"]:
        furthest = max(said["groups"], key=lambda name: said["groups"][name])
        words += f"; {furthest} stood furthest of the groups, {said['groups'][furthest]:.2g} of it"
    if said["loss"] is not None:
        words += f". A merge added {said['loss']:+.2g} to the loss of members' last batches"
    return words + "."
