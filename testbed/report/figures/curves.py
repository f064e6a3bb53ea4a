"""What programs that are not ours gave of themselves, over time."""

from __future__ import annotations

from statistics import fmean

from testbed.report.figures.canvas import BLUE, TIME_LEFT, TIME_RIGHT, Drawing, new_figure, over_time, style
from testbed.report.figures.marks import draw_marks
from testbed.report.record import RunRecord

#: A page shows so many names, those with the most values; all are in `curves.jsonl`.
MOST_CURVES = 6


def draw_curves(record: RunRecord) -> Drawing | None:
    """A curve for each name, one above the other, a line for each program; swaps and events through all."""
    found = record.curves
    names = sorted(found, key=lambda name: -sum(len(at) for at, _ in found[name].values()))[:MOST_CURVES]
    if not names:
        return None
    with style():
        figure = new_figure(1.5 * len(names) + 0.75)
        figure.subplots_adjust(TIME_LEFT, 0.42 / figure.get_figheight(), TIME_RIGHT, 1 - 0.62 / figure.get_figheight())
        axes = figure.subplots(len(names), sharex=True, squeeze=False)[:, 0].tolist()
        for each, name in zip(axes, names, strict=True):
            for at, values in found[name].values():
                each.plot(
                    at, values, color=BLUE, alpha=0.7, marker="o" if len(at) < 60 else None, markersize=3, zorder=3
                )
            each.margins(y=0.08)
            each.text(0.995, 0.86, name, transform=each.transAxes, ha="right", color=BLUE, weight="bold")
        over_time(axes[-1], record.end_s)
        draw_marks(axes, record.marks, record.end_s)
        return Drawing(figure, "curves", "What the programs said of themselves", _words(record, names))


def _words(record: RunRecord, names: list[str]) -> str:
    parts = []
    for name in names:
        curves = record.curves[name].values()
        first, last = fmean(values[0] for _, values in curves), fmean(values[-1] for _, values in curves)
        parts.append(f"{name} goes from {first:.3g} to {last:.3g}.")
    return " ".join(parts)
