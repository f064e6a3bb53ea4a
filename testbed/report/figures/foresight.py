"""Whole rounds over time, with the controller's predictions of them."""

from __future__ import annotations

from statistics import median
from typing import Any

import numpy as np

from testbed.report import text
from testbed.report.figures.canvas import BLUE, GREEN, ORANGE, SKY, TIME_LEFT, Drawing, over_time, style, time_panels
from testbed.report.figures.marks import draw_marks
from testbed.report.record import RunRecord
from testbed.report.replanning import predictions, promises, whole_rounds
from testbed.report.score import AHEAD, Score
from testbed.report.series import StepFunction

#: The most steps of the line: about two per point of the figure's width, some 720 points.
STEPS = 1_400

#: The end of the axis over the maximum of line and predictions: one very long round would press all others flat.
ABOVE = 1.3


def draw_foresight(record: RunRecord, score: Score) -> Drawing | None:
    """Draw the median of the next rounds as a line, with predictions as dots, which lie on the line if right."""
    rounds, predicted = whole_rounds(record), predictions(record)
    if not rounds or not predicted:
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
