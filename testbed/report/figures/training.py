"""Training over time: loss and accuracy, printed metrics, and how far members were apart when they merged."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter
from msgspec import to_builtins

from testbed.report.figures.canvas import (
    BLUE,
    CYCLE,
    GREEN,
    MUTED,
    ORANGE,
    Drawing,
    draw_marks,
    over_time,
    style,
    time_panels,
)
from testbed.report.record import RunRecord
from testbed.run.conclusion.drift import MergeDrift, merges, summary

#: The number of printed metrics that are shown, those with the most values; `curves.jsonl` has all.
MOST_CURVES = 6

Curve = tuple[Sequence[float], Sequence[float]]


def draw_training(record: RunRecord) -> Drawing | None:
    """Draw the metrics that programs printed, or else the reported loss above the accuracy; None without any."""
    if not record.end_s:
        return None
    if record.curves:
        return _draw_printed(record)
    curves = {
        name: (title, record.metric(name), colour)
        for name, title, colour in (("loss", "training loss", BLUE), ("accuracy", "test accuracy", GREEN))
        if record.metric(name)[0]
    }
    if not curves:
        return None
    with style():
        figure, panels = time_panels(1.9 * len(curves) + 0.75, 0.62, len(curves))
        for axes, (title, curve, colour) in zip(panels, curves.values(), strict=True):
            _plot(axes, curve, colour)
            # Above a loss that fell and below an accuracy that rose there is room.
            height = 0.88 if curve[1][-1] <= curve[1][0] else 0.06
            axes.text(0.995, height, title, transform=axes.transAxes, ha="right", color=colour, weight="bold")
        if "accuracy" in curves:
            panels[-1].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        over_time(panels[-1], record.end_s)
        draw_marks(panels, record.marks, record.end_s)
        forms = {"loss": "{:.3g}", "accuracy": "{:.1%}"}
        sentences = [
            f"The {title} goes from {forms[name].format(values[0])} to {forms[name].format(values[-1])}."
            for name, (title, (_, values), _) in curves.items()
        ]
        return Drawing(figure, "training", "Loss and accuracy over time", " ".join(sentences))


def _draw_printed(record: RunRecord) -> Drawing | None:
    """Draw a panel for each printed metric, with a line for each program."""
    found = record.curves
    names = sorted(found, key=lambda name: -sum(len(at) for at, _ in found[name].values()))[:MOST_CURVES]
    with style():
        figure, panels = time_panels(1.5 * len(names) + 0.75, 0.62, len(names))
        sentences = []
        for axes, name in zip(panels, names, strict=True):
            curves = found[name].values()
            for curve in curves:
                _plot(axes, curve, BLUE, alpha=0.7)
            axes.text(0.995, 0.86, name, transform=axes.transAxes, ha="right", color=BLUE, weight="bold")
            first, last = fmean(values[0] for _, values in curves), fmean(values[-1] for _, values in curves)
            sentences.append(f"{name} goes from {first:.3g} to {last:.3g}.")
        over_time(panels[-1], record.end_s)
        draw_marks(panels, record.marks, record.end_s)
        return Drawing(figure, "curves", "Metrics that the programs printed", " ".join(sentences))


def _plot(axes: Axes, curve: Curve, colour: str, alpha: float = 1.0) -> None:
    at, values = curve
    axes.plot(at, values, color=colour, alpha=alpha, marker="o" if len(at) < 60 else None, markersize=3, zorder=3)
    axes.margins(y=0.08)


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
