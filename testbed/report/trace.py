"""A trace for people: its facts and columns in the terminal, and a picture file of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from rich.table import Table

from testbed.report.series import StepFunction
from testbed.trace.csv import Column, columns_of
from testbed.trace.mahimahi import DeliverySchedule
from testbed.trace.read import TraceFile
from testbed.trace.resample import LEAST_STEP_S, Resampled
from testbed.trace.trace import Trace

#: The width of a sketch in characters, without its scale, and its height in lines.
WIDTH, HEIGHT = 72, 6

_EIGHTHS = " ▁▂▃▄▅▆▇█"

#: The height of a column's panel in a picture, and the margins above and below all panels, in inches.
PANEL_HEIGHT, TOP, BOTTOM = 1.8, 0.4, 0.5


def facts(found: TraceFile) -> Iterator[str]:
    """Yield lines on a trace: its format and duration, and the error of a resampled one."""
    trace = found.trace
    yield f"{found.path}: {found.format}, {len(trace.rows)} rows, {trace.duration_s:.6g} s, then {trace.end}"
    if found.resampled:
        yield error_of(found.resampled)


def error_of(made: Resampled) -> str:
    """Return a line on the error of a resampled trace: the mean relative error of the bytes delivered per step.

    For a packet-delivery file, whose rate within a step is known, also per tenth of a step.
    """
    within = made.step_s / 10
    known = isinstance(made.source, DeliverySchedule) and within >= LEAST_STEP_S
    tenths = f", {made.error(within):.2%} in tenths of it" if known else ""
    return (
        f"resampled at a step of {made.step_s:g} s: error of the bytes delivered {made.error(made.step_s):.2%} a step"
        f"{tenths}; over the whole {abs(made.drift):.2%}"
    )


def table(found: TraceFile) -> Table:
    """Return the mean, the minimum and the maximum of each column."""
    rows = Table("column", "mean", "min", "max", box=None, pad_edge=False)
    for column in columns_of(found.trace):
        rows.add_row(column.name, f"{column.mean:.6g}", f"{column.least:.6g}", f"{column.most:.6g}")
    return rows


def sketch(column: Column) -> Iterator[str]:
    """Yield the lines of a sketch of a column over time, from 0 to its maximum; each character shows a mean."""
    values = np.array([np.nan if value is None else value for value in column.values])
    parts = np.linspace(0.0, column.edges_s[-1], WIDTH + 1)
    steps = StepFunction(np.array(column.edges_s), values)
    means = np.nan_to_num([steps.mean(start, stop) for start, stop in pairwise(parts)])
    top = column.most or 1.0
    heights = np.round(means / top * HEIGHT * 8).astype(int)
    for line in reversed(range(HEIGHT)):
        scale = f"{top:9.4g}" if line == HEIGHT - 1 else f"{'0' if line == 0 else '':>9}"
        yield f"{scale} ┤" + "".join(_EIGHTHS[min(max(height - 8 * line, 0), 8)] for height in heights)
    yield f"{column.name:>9} └" + f"{column.edges_s[-1]:.6g} s".rjust(WIDTH, "─")


def save_trace(trace: Trace, title: str, path: Path) -> None:
    """Draw one lap of a trace into a PNG file, a panel for each column. Raises: OSError: it cannot be written."""
    from testbed.report.figures.canvas import BLUE, PAPER, TIME_RIGHT, new_figure, style  # loads Matplotlib

    columns = list(columns_of(trace))
    height = len(columns) * PANEL_HEIGHT + TOP + BOTTOM
    with style():
        figure = new_figure(height)
        figure.subplots_adjust(0.075, BOTTOM / height, TIME_RIGHT, 1 - TOP / height)
        panels = figure.subplots(len(columns), sharex=True, squeeze=False)[:, 0]
        panels[0].set_title(title)
        for axes, column in zip(panels, columns, strict=True):
            values = [np.nan if value is None else value for value in column.values]
            axes.stairs(values, column.edges_s, baseline=None, color=BLUE)
            axes.set_ylabel(column.name)
            axes.set_ylim(0, column.most * 1.05 or 1.0)
            axes.margins(x=0)
        panels[-1].set_xlabel("seconds", loc="right")
        figure.savefig(path, format="png", dpi=150, facecolor=PAPER)
