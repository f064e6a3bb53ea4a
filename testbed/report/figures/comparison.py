"""Figures of several runs together: a metric over time, and the spread of their rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np
from matplotlib.ticker import PercentFormatter

from testbed.report import text
from testbed.report.figures.canvas import CYCLE, INK, TIME_RIGHT, Drawing, new_figure, over_time, style, time_panels
from testbed.report.record import RunRecord

#: Label -> run.
Runs = Mapping[str, RunRecord]

_LINES: Sequence[object] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))


def draw_progress(runs: Runs, metric: str, title: str) -> Drawing | None:
    """Draw a metric over time, a line for each run: a colour for each policy, dashes for its different runs."""
    curves = {label: record.metric(metric) for label, record in runs.items()}
    if not any(at for at, _ in curves.values()):
        return None
    with style():
        figure, [axes] = time_panels(2.9, 0.35)
        for label, (at, values) in curves.items():
            colour, dashes = look(runs, label)
            axes.plot(at, values, color=colour, linestyle=dashes, label=label)
        if metric == "accuracy":
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        over_time(axes, max(record.end_s for record in runs.values()))
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=min(6, len(runs)), borderpad=0)
        last = ", ".join(f"{label} {values[-1]:.3g}" for label, (_, values) in curves.items() if values)
        return Drawing(figure, metric, title, f"Last values: {last}.")


def draw_spread(runs: Runs) -> Drawing | None:
    """Draw each round's time as a dot, a row for each run, with the median, the 95th percentile and the bound."""
    times = {label: [round_.seconds for round_ in record.rounds] for label, record in runs.items() if record.rounds}
    if not times:
        return None
    with style():
        height = 0.75 + 0.42 * len(times)
        figure = new_figure(height)
        figure.subplots_adjust(0.16, 0.42 / height, TIME_RIGHT, 1 - 0.12 / height)
        axes = figure.subplots()
        scatter = np.random.default_rng(0)
        for row, (label, values) in enumerate(times.items()):
            colour, _ = look(runs, label)
            heights = row + scatter.uniform(-0.22, 0.22, len(values))
            axes.plot(values, heights, "o", color=colour, markersize=2.6, markeredgewidth=0, alpha=0.45)
            middle, high = np.percentile(values, [50, 95])
            axes.plot([middle] * 2, [row - 0.36, row + 0.36], color=INK, linewidth=2)
            axes.plot([high] * 2, [row - 0.24, row + 0.24], color=INK, linewidth=1)
            if bound := runs[label].section("sync").get("bound_seconds"):
                axes.plot([bound] * 2, [row - 0.36, row + 0.36], color=INK, linewidth=1, linestyle=(0, (2, 1.5)))
        axes.set_yticks(range(len(times)), list(times))
        axes.set_ylim(len(times) - 0.45, -0.55)
        axes.set_xlim(left=0)
        axes.tick_params(axis="y", length=0)
        axes.grid(True, axis="x")
        axes.grid(False, axis="y")
        axes.set_xlabel("seconds per round", loc="right", fontsize=8)
        words = "; ".join(f"{label}: median {text.seconds(median(values))}" for label, values in times.items())
        return Drawing(figure, "spread", "Time per round, by run", f"{words}.")


def look(runs: Runs, label: str) -> tuple[str, object]:
    """Return (colour, dashes) of a run: by its policy where policies differ, or else by the run."""
    labels, policies = list(runs), list(dict.fromkeys(record.policy for record in runs.values()))
    if len(policies) < 2:
        return CYCLE[labels.index(label) % len(CYCLE)], "-"
    policy = runs[label].policy
    alike = [each for each in labels if runs[each].policy == policy]
    colour = CYCLE[policies.index(policy) % len(CYCLE)]
    return colour, _LINES[alike.index(label) % len(_LINES)]
