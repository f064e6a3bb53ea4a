"""Loss and accuracy over time."""

from __future__ import annotations

from matplotlib.ticker import PercentFormatter

from testbed.report.figures.canvas import (
    BLUE,
    GREEN,
    TIME_LEFT,
    TIME_RIGHT,
    Drawing,
    new_figure,
    over_time,
    style,
)
from testbed.report.figures.curves import draw_curves
from testbed.report.figures.marks import draw_marks
from testbed.report.record import RunRecord


def draw_training(record: RunRecord) -> Drawing | None:
    """Loss above, accuracy below where there is one, or what programs that are not ours said; swaps and events through
    all."""
    if record.curves:
        return draw_curves(record)
    loss, accuracy = record.metric("loss"), record.metric("accuracy")
    curves = [
        (title, curve, colour)
        for title, curve, colour in (("training loss", loss, BLUE), ("test accuracy", accuracy, GREEN))
        if curve[0]
    ]
    if not curves:
        return None
    with style():
        figure = new_figure(1.9 * len(curves) + 0.75)
        figure.subplots_adjust(TIME_LEFT, 0.42 / figure.get_figheight(), TIME_RIGHT, 1 - 0.62 / figure.get_figheight())
        axes = figure.subplots(len(curves), sharex=True, squeeze=False)[:, 0].tolist()
        for each, (title, (at, values), colour) in zip(axes, curves, strict=True):
            marker = "o" if len(at) < 60 else None
            each.plot(at, values, color=colour, marker=marker, markersize=3, zorder=3)
            each.margins(y=0.08)
            # Where a curve that learns leaves room: above a loss that fell, below an accuracy that rose.
            height = 0.88 if values[-1] <= values[0] else 0.06
            each.text(0.995, height, title, transform=each.transAxes, ha="right", color=colour, weight="bold")
        if accuracy[0]:
            axes[-1].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        over_time(axes[-1], record.end_s)
        draw_marks(axes, record.marks, record.end_s)
        return Drawing(figure, "training", "Loss and accuracy over time", _words(loss, accuracy))


def _words(loss: tuple[list[float], list[float]], accuracy: tuple[list[float], list[float]]) -> str:
    parts = []
    if loss[1]:
        parts.append(f"The training loss goes from {loss[1][0]:.3g} to {loss[1][-1]:.3g}.")
    if accuracy[1]:
        parts.append(f"The test accuracy goes from {accuracy[1][0]:.1%} to {accuracy[1][-1]:.1%}.")
    return " ".join(parts)
