"""Loss and accuracy over time, or the metrics that a command's programs printed."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from testbed.report.figures.canvas import BLUE, GREEN, Drawing, over_time, style, time_panels
from testbed.report.figures.marks import draw_marks
from testbed.report.record import RunRecord

#: The number of printed metrics that are shown, those with the most values; `curves.jsonl` has all.
MOST_CURVES = 6

Curve = tuple[Sequence[float], Sequence[float]]


def draw_training(record: RunRecord) -> Drawing | None:
    """Draw the loss above the accuracy, as far as members reported them, or else the printed metrics."""
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
