"""The duration of rounds over time: of each round with the bound, and of whole rounds with their predictions."""

from __future__ import annotations

from statistics import median
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from testbed.report import text
from testbed.report.figures.canvas import (
    BEHIND,
    BLUE,
    CYCLE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    SKY,
    TIME_LEFT,
    TIME_RIGHT,
    WIDTH,
    Drawing,
    annotate,
    draw_marks,
    over_time,
    style,
    time_panels,
)
from testbed.report.record import RunRecord
from testbed.report.replanning import predictions, promises, whole_rounds
from testbed.report.score import AHEAD, Score
from testbed.report.series import StepFunction
from testbed.run.conclusion.summary import RoundFigures

#: The scale is logarithmic if a round takes this many times the median: on a linear scale all others would look equal.
LOG_ABOVE = 12.0

#: A bound below this share of the longest round has no room for its name below its line.
BOUND_BELOW = 0.15

#: The width of a character of an epoch's name, in points; an epoch that is narrower than its name is drawn without it.
NAME_POINTS = 4.5


def draw_rounds(record: RunRecord) -> Drawing | None:
    """Draw a dot for each round, in the colour of its plan, with each plan's median, and the bound."""
    if not record.rounds or not record.end_s:
        return None
    times = [round_.seconds for round_ in record.rounds]
    with style():
        figure, [axes] = time_panels(3.1, 0.62)
        for index, (epoch, rounds) in enumerate(record.epochs.items()):
            _draw_epoch(axes, record, epoch, rounds, CYCLE[index % len(CYCLE)])
        bound = _draw_bound(axes, record)
        if (least := min([*times, *bound])) > 0 and max(times) > LOG_ABOVE * median(times):
            axes.set_yscale("log")
            axes.set_ylim(bottom=least / 1.5)
        else:
            axes.set_ylim(0, max(times) * 1.08 or 1.0)
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
    look: dict[str, Any] = {"color": colour, "weight": "bold", "bbox": BEHIND, "zorder": 6}
    annotate(axes, name, (at[-1], middle), (-2, 3), ha="right", va="bottom", **look)


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
    offset, side = (3, 3 if low else -3), "bottom" if low else "top"
    annotate(axes, "bound", (0, values[0]), offset, va=side, color=MUTED, style="italic")
    return values


#: The most steps of the line: about two per point of the figure's width, some 720 points.
STEPS = 1_400

#: The end of the axis over the maximum of line and predictions: one very long round would make all others look equal.
ABOVE = 1.3


def draw_foresight(record: RunRecord, score: Score) -> Drawing | None:
    """Draw the median of the next rounds as a line, with predictions as dots; a correct prediction lies on the line."""
    rounds, predicted = whole_rounds(record), predictions(record)
    if not rounds or not predicted or not record.end_s:
        return None
    with style():
        figure, [axes] = time_panels(3.2, 0.8)
        ahead = _ahead(record).thinned(STEPS)
        most = ABOVE * max(*ahead.values, *(seconds for *_, seconds in predicted))
        dots: dict[str, Any] = {"linestyle": "none", "markeredgewidth": 0}
        axes.plot(
            [end for end, _ in rounds],
            [min(seconds, most) for _, seconds in rounds],
            **dots, marker="o", color=SKY, markersize=3, alpha=0.8, clip_on=False, label="whole round",
        )  # fmt: skip
        label = f"median of the next {AHEAD} under the same plan"
        axes.stairs(ahead.values, ahead.edges, baseline=None, color=BLUE, linewidth=1.4, zorder=3, label=label)
        looked = [(at_s, seconds) for at_s, _, seconds in predicted]
        label = "predicted for the plan in force"
        axes.plot(*_points(looked), **dots, marker="o", color=ORANGE, markersize=4, zorder=4, label=label)
        label = "promised by a swap"
        axes.plot(*_points(promises(record)), **dots, marker="D", color=GREEN, markersize=5, zorder=4, label=label)
        over_time(axes, record.end_s)
        axes.set_ylabel("seconds per whole round")
        axes.set_ylim(0, most)
        draw_marks([axes], record.marks, record.end_s)
        figure.legend(loc="upper left", ncols=4, bbox_to_anchor=(TIME_LEFT - 0.012, 1.02), handletextpad=0.5)
        ratios = score.calibration
        words = f"{text.count(len(predicted), 'prediction')} over {text.count(len(rounds), 'round')}"
        if ratios:
            words += f"; predicted ÷ measured {median(ratios):.2f} at the median"
        return Drawing(figure, "foresight", "Whole rounds, predicted and measured", f"{words}.")


def _ahead(record: RunRecord) -> StepFunction:
    """Return the median of each whole round and the next ones under its plan, from the beginning of the round on."""
    rounds = whole_rounds(record)
    epochs = [one.epoch for one in record.rounds][1:]
    values = [
        median(
            seconds
            for (_, seconds), epoch in zip(rounds[i : i + AHEAD], epochs[i : i + AHEAD], strict=True)
            if epoch == epochs[i]
        )
        for i in range(len(rounds))
    ]
    return StepFunction(np.array([rounds[0][0] - rounds[0][1], *(end for end, _ in rounds)]), np.array(values))


def _points(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [at for at, _ in points], [value for _, value in points]
