"""A trace in the terminal: its facts, and each column over time in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from rich.table import Table

from testbed.report.series import StepFunction
from testbed.trace.csv import Column, columns_of
from testbed.trace.mahimahi import DeliverySchedule
from testbed.trace.read import TraceFile
from testbed.trace.resample import LEAST_STEP_S, Resampled

#: Characters a sketch is wide, without its scale, and lines it is high.
WIDTH, HEIGHT = 72, 6

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def facts(found: TraceFile) -> Iterator[str]:
    """Lines that say what the trace is and, of a resampled one, how far it is from what was recorded."""
    trace = found.trace
    yield f"{found.path}: {found.format}, {len(trace.rows)} rows, {trace.duration_s:.6g} s, then {trace.end}"
    if found.resampled:
        yield error_of(found.resampled)


def error_of(made: Resampled) -> str:
    """The step and the mean relative error of the bytes delivered per step; of packets in tenths of it too, for what
    they did within a step is known."""
    within = made.step_s / 10
    known = isinstance(made.source, DeliverySchedule) and within >= LEAST_STEP_S
    tenths = f", {made.error(within):.2%} in tenths of it" if known else ""
    return (
        f"resampled at a step of {made.step_s:g} s: error of the bytes delivered {made.error(made.step_s):.2%} a step"
        f"{tenths}; over the whole {abs(made.drift):.2%}"
    )


def table(found: TraceFile) -> Table:
    """Least, mean and most of each column."""
    rows = Table("column", "mean", "min", "max", box=None, pad_edge=False)
    for column in columns_of(found.trace):
        rows.add_row(column.name, f"{column.mean:.6g}", f"{column.least:.6g}", f"{column.most:.6g}")
    return rows


def sketch(column: Column) -> Iterator[str]:
    """The column over time, from 0 to its most: a character shows the mean of its part of the time."""
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
