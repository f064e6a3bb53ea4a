"""The duration of each round over time, with the bound."""

from __future__ import annotations

from statistics import median

import numpy as np
from matplotlib.axes import Axes

from testbed.report import text
from testbed.report.figures.canvas import (
    CYCLE,
    INK,
    MUTED,
    PAPER,
    TIME_LEFT,
    TIME_RIGHT,
    WIDTH,
    Drawing,
    over_time,
    style,
    time_panels,
)
from testbed.report.figures.marks import draw_marks
from testbed.report.record import RunRecord
from testbed.run.conclusion.summary import RoundFigures

#: The scale is logarithmic where a round takes this many medians: on a linear one all others would be pressed flat.
LOG_ABOVE = 12.0

#: A bound below this share of the longest round has no room for its name below it.
BOUND_BELOW = 0.15

#: The width of a character of an epoch's name, in points; an epoch that is shorter than its name goes without.
NAME_POINTS = 4.5


def draw_rounds(record: RunRecord) -> Drawing | None:
    """Draw a dot for each round, in the colour of its plan, with each plan's median, and the bound."""
    if not record.rounds:
        return None
    times = [round_.seconds for round_ in record.rounds]
    with style():
        figure, [axes] = time_panels(3.1, 0.62)
        for index, (epoch, rounds) in enumerate(record.epochs.items()):
            _draw_epoch(axes, record, epoch, rounds, CYCLE[index % len(CYCLE)])
        bound = _draw_bound(axes, record)
        if max(times) > LOG_ABOVE * median(times):
            axes.set_yscale("log")
            axes.set_ylim(bottom=min([*times, *bound]) / 1.5)
        else:
            axes.set_ylim(0, max(times) * 1.08)
        axes.set_ylabel("seconds per round")
        over_time(axes, record.end_s)
        draw_marks([axes], record.marks, record.end_s)
        words = "; ".join(
            f"{_name(record, epoch)}: {text.count(len(rounds), 'round')}, "
            f"median {text.seconds(median(r.seconds for r in rounds))}"
            for epoch, rounds in record.epochs.items()
        )
        return Drawing(figure, "rounds", "Time per round", f"{words}.")


def _draw_epoch(axes: Axes, record: RunRecord, epoch: int, rounds: tuple[RoundFigures, ...], colour: str) -> None:
    at = [record.since(round_.finished_s) for round_ in rounds]
    middle = median(round_.seconds for round_ in rounds)
    axes.plot(at, [r.seconds for r in rounds], "o", color=colour, markersize=3, markeredgewidth=0, alpha=0.75, zorder=3)
    axes.hlines(middle, record.since(rounds[0].entered_s), at[-1], color=colour, linewidth=1.6, zorder=4)
    name = f"{_name(record, epoch)}: {text.seconds(middle)}"
    width = (TIME_RIGHT - TIME_LEFT) * WIDTH * 72 * (at[-1] - record.since(rounds[0].entered_s)) / record.end_s
    if width < len(name) * NAME_POINTS:
        return
    axes.annotate(
        name,
        (at[-1], middle),
        xytext=(-2, 3),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=8,
        color=colour,
        weight="bold",
        bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.6, "alpha": 0.75},
        zorder=6,
    )


def _name(record: RunRecord, epoch: int) -> str:
    return f"plan {epoch}" if record.planned else "without plans"


def _draw_bound(axes: Axes, record: RunRecord) -> list[float]:
    """Draw the bound as the controller found it over time, or else the run's single figure. Returns its values."""
    found = [(line["at_s"], line["bound_s"]) for line in record.decisions if line.get("bound_s")]
    whole = record.section("sync").get("bound_seconds")
    if found:
        edges = np.array([max(0.0, found[0][0]), *(at for at, _ in found[1:]), max(record.end_s, found[-1][0])])
        values = [bound for _, bound in found]
    elif whole:
        edges, values = np.array([0.0, record.end_s]), [whole]
    else:
        return []
    axes.stairs(values, edges, baseline=None, color=INK, linewidth=1.0, linestyle=(0, (4, 2)), zorder=3.5)
    low = values[0] < BOUND_BELOW * max(round_.seconds for round_ in record.rounds)
    axes.annotate(
        "bound",
        (0, values[0]),
        xytext=(3, 3 if low else -3),
        textcoords="offset points",
        va="bottom" if low else "top",
        fontsize=8,
        color=MUTED,
        style="italic",
    )
    return values
