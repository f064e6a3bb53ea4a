"""Swaps and events over a figure's time axis, each with its name in a lane above, where there is room for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes

from testbed.report.figures.canvas import BLUE, INK, MUTED, PAPER, PINK
from testbed.report.record import Mark

#: Rows of names above the axes; what finds no room there keeps its line and stands in the page's tables.
ROWS = 3

ROW_POINTS = 11.0

_LOOK = {"plan": (BLUE, (0, ())), "network": (PINK, (0, (5, 2))), "event": (MUTED, (0, (1, 2)))}

#: Mean width of a character of the names, in points; wide fonts take no more.
_CHARACTER_POINTS = 4.6


def draw_marks(axes: Sequence[Axes], marks: Iterable[Mark], end_s: float, names: bool = True) -> None:
    """A line through all `axes` for each mark; with `names`, the marks' names above the first of them."""
    marks = [mark for mark in marks if 0 <= mark.at_s <= end_s]
    for mark in marks:
        colour, dashes = _LOOK[mark.kind]
        for each in axes:
            each.axvline(mark.at_s, color=colour, linewidth=0.9, linestyle=dashes, zorder=1.5)
    if names:
        _write_names(axes[0], marks, end_s)


def _write_names(axes: Axes, marks: Sequence[Mark], end_s: float) -> None:
    figure = axes.get_figure(root=True)
    assert figure is not None
    width = axes.get_position().width * figure.get_figwidth() * 72
    taken = [0.0] * ROWS
    for mark in marks:
        x = mark.at_s / end_s * width
        length = len(mark.label) * _CHARACTER_POINTS + 6
        left = x - length if x + length > width else x
        row = next((row for row in range(ROWS) if taken[row] <= left), None)
        if row is None:
            continue
        taken[row] = left + length
        colour, _ = _LOOK[mark.kind]
        axes.annotate(
            mark.label,
            (mark.at_s, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 4 + row * ROW_POINTS),
            textcoords="offset points",
            ha="left" if left == x else "right",
            fontsize=8,
            color=INK if mark.kind == "event" else colour,
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.8},
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.9, "shrinkA": 0, "shrinkB": 0},
            annotation_clip=False,
        )
