"""Marks of swaps and events on a time axis: a line each, and a name above the axes where there is room for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from testbed.report.figures.canvas import INK, MUTED, PAPER, PINK
from testbed.report.record import Mark

#: The rows of names above the axes. A mark whose name finds no room keeps its line, and stands in the page's tables.
ROWS = 3

ROW_POINTS = 11.0

_LOOK = {"plan": (INK, (0, ())), "network": (PINK, (0, (5, 2))), "event": (MUTED, (0, (1, 2)))}

#: The width of a character of a name, in points; wide fonts take no more on average.
_CHARACTER_POINTS = 4.6


@dataclass(frozen=True, slots=True)
class _Name:
    """The place of a name: its mark and its extent, in points from the left of the axes, and its row."""

    at: float
    left: float
    right: float
    row: int

    def clashes(self, other: _Name) -> bool:
        """Return whether the names overlap, or the line that leads up to one crosses the other."""
        if self.row == other.row:
            return self.left < other.right and other.left < self.right
        low, high = sorted((self, other), key=lambda name: name.row)
        return low.left < high.at < low.right


def draw_marks(axes: Sequence[Axes], marks: Iterable[Mark], end_s: float, names: bool = True) -> None:
    """Draw a line through all `axes` for each mark; with `names`, also their names above the first axes."""
    marks = [mark for mark in marks if 0 <= mark.at_s <= end_s]
    for mark in marks:
        colour, dashes = _LOOK[mark.kind]
        for each in axes:
            each.axvline(
                mark.at_s, color=colour, linewidth=0.8, linestyle=dashes, alpha=0.9 if names else 0.45, zorder=1.5
            )
    if names:
        _write_names(axes[0], marks, end_s)


def _write_names(axes: Axes, marks: Sequence[Mark], end_s: float) -> None:
    figure = axes.get_figure(root=True)
    assert figure is not None
    width = axes.get_position().width * figure.get_figwidth() * 72
    all_at = [mark.at_s / end_s * width for mark in marks]
    placed: list[_Name] = []
    # From right to left, so that a name goes above the names of the marks that it covers.
    for mark, at in reversed(list(zip(marks, all_at, strict=True))):
        for label in filter(None, (mark.label, mark.short)):
            name = _place(at, len(label) * _CHARACTER_POINTS + 8, width, placed, all_at)
            if name is not None:
                break
        else:
            continue
        placed.append(name)
        colour, _ = _LOOK[mark.kind]
        flush = name.left == name.at
        axes.annotate(
            label,
            (mark.at_s, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(2 if flush else -2, 4 + name.row * ROW_POINTS),
            textcoords="offset points",
            ha="left" if flush else "right",
            fontsize=8,
            color=colour,
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.6},
        )
        axes.annotate(
            "",
            (mark.at_s, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 11 + name.row * ROW_POINTS),
            textcoords="offset points",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.8, "shrinkA": 0, "shrinkB": 0},
        )


def _place(at: float, length: float, width: float, placed: Sequence[_Name], all_at: Sequence[float]) -> _Name | None:
    """Return the lowest place for a name, right of its mark or else left of it; None where it finds no room.

    A name that covers other marks on its left goes to the top row, so that their names find room below.
    """
    runs_over = any(at - length < other < at for other in all_at)
    right = [_Name(at, at, at + length, row) for row in range(ROWS) if at + length <= width + 10]
    left = [_Name(at, at - length, at, row) for row in range(ROWS - 1 if runs_over else 0, ROWS) if at >= length]
    return next((name for name in right + left if not any(name.clashes(other) for other in placed)), None)
