"""The distance of members and groups from their mean when they merged, and its effect on the loss."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from msgspec import to_builtins

from testbed.report.figures.canvas import BLUE, CYCLE, MUTED, ORANGE, Drawing, over_time, style, time_panels
from testbed.report.record import RunRecord
from testbed.run.conclusion.drift import MergeDrift, merges, summary


def draw_drift(record: RunRecord) -> Drawing | None:
    """Draw the distances from the mean, a line for each fragment, above the loss before and after merges."""
    found = drift_of(record)
    if not found:
        return None
    losses = [
        (its.at_s - record.zero_s, its.loss_before, its.loss_after)
        for its in found
        if its.loss_before is not None and its.loss_after is not None
    ]
    with style():
        count = 2 if losses else 1
        figure, axes = time_panels(1.9 * count + 0.75, 0.35, count)
        _distances(axes[0], record, found)
        if losses:
            at, before, after = zip(*losses, strict=True)
            axes[1].plot(at, before, color=ORANGE, label="loss before merges")
            axes[1].plot(at, after, color=BLUE, label="loss after merges")
            axes[1].legend(loc="upper right", ncols=2)
        over_time(axes[-1], record.end_s)
        return Drawing(figure, "drift", "Distance of members from their mean when they merged", _words(found))


def drift_of(record: RunRecord) -> list[MergeDrift]:
    """Return all merges of a run. Groups are those of the plan, or the sites where the plan has none."""

    def groups(epoch: int) -> dict[str, Sequence[str]]:
        plan = record.plans.get(epoch)
        if plan is not None and plan.groups:
            return {f"group of {group.members[0]}": group.members for group in plan.groups}
        return dict(record.sites)

    return merges((to_builtins(report) for report in record.reports if report.drift), groups)


def _distances(axes: Axes, record: RunRecord, found: Sequence[MergeDrift]) -> None:
    """Draw the members' root mean square distance in a band from the least to the greatest, and those of the groups.

    Groups have the same colour in each fragment; groups beyond the number of colours are left out.
    """
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
    figures = summary(found)
    if figures is None:
        return "The mean had not moved when members merged."
    words = f"At the median, members were {figures['members']:.2g} times as far from their mean as the mean had moved"
    if figures["groups"]:
        furthest = max(figures["groups"], key=lambda name: figures["groups"][name])
        words += f"; {furthest} was the furthest of the groups, {figures['groups'][furthest]:.2g} times as far"
    if figures["loss"] is not None:
        words += f". A merge changed the loss of the members' last batches by {figures['loss']:+.2g}"
    return words + "."
