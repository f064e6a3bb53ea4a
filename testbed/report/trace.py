"""A trace for people: its facts, columns and picture; and the rate that a run measured on a link, as a trace."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from rich.table import Table

from testbed.link import NoSuchLink, find_link
from testbed.report.record import RunRecord
from testbed.report.series import StepFunction, steady_rate
from testbed.spec.units import count
from testbed.trace.csv import Column, columns_of
from testbed.trace.mahimahi import DeliverySchedule
from testbed.trace.read import TraceFile
from testbed.trace.resample import LEAST_BPS, LEAST_STEP_S, MOST_ROWS, Resampled
from testbed.trace.text import as_line
from testbed.trace.trace import Row, Trace, TraceError, lasting

#: The width of a sketch in characters, without its scale, and its height in lines.
WIDTH, HEIGHT = 72, 6

_EIGHTHS = " ▁▂▃▄▅▆▇█"

#: The height of a column's panel in a picture, and the margins above and below all panels, in inches.
PANEL_HEIGHT, TOP, BOTTOM = 1.8, 0.4, 0.5


def facts(found: TraceFile) -> Iterator[str]:
    """Yield lines on a trace: its format and duration, and the error of a resampled one."""
    trace = found.trace
    yield f"{found.path}: {found.format}, {count(len(trace.rows), 'row')}, {trace.duration_s:.6g} s, then {trace.end}"
    if found.resampled:
        yield error_of(found.resampled)


def error_of(made: Resampled) -> str:
    """Return a line on the error of a resampled trace: the mean relative error of the bytes delivered per step.

    For a packet-delivery file, whose rate within a step is known, also per tenth of a step, unless the file has over
    MOST_ROWS tenths.
    """
    within = made.step_s / 10
    few = made.source.duration_s <= MOST_ROWS * within
    known = isinstance(made.source, DeliverySchedule) and within >= LEAST_STEP_S and few
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
    """Draw one lap of a trace into a PNG file, a panel for each column.

    Raises:
        TraceError: No row has a value.
        OSError: The file cannot be written.
    """
    from testbed.report.figures.canvas import BLUE, PAPER, TIME_RIGHT, new_figure, style  # loads Matplotlib

    columns = list(columns_of(trace))
    if not columns:
        raise TraceError(f"{title}: no row has a value to draw; write one or more", rule="no-values")
    height = len(columns) * PANEL_HEIGHT + TOP + BOTTOM
    with style():
        figure = new_figure(height)
        figure.subplots_adjust(0.075, BOTTOM / height, TIME_RIGHT, 1 - TOP / height)
        panels = figure.subplots(len(columns), sharex=True, squeeze=False)[:, 0]
        panels[0].set_title(as_line(title))
        for axes, column in zip(panels, columns, strict=True):
            values = [np.nan if value is None else value for value in column.values]
            axes.stairs(values, column.edges_s, baseline=None, color=BLUE)
            axes.set_ylabel(column.name)
            axes.set_ylim(0, column.most * 1.05 or 1.0)
            axes.margins(x=0)
        panels[-1].set_xlabel("seconds", loc="right")
        figure.savefig(path, format="png", dpi=150, facecolor=PAPER)


#: The least share of a sample's time for which the queue must be backlogged in steady stretches. The bytes of these
#: stretches show the link's rate within 0.3 %, in each sample of four runs of experiments/smoke.yaml, three of them
#: beside `stress-ng --cpu 2`. All arrived bytes over all backlogged seconds were 45 % above the rate if the queue was
#: backlogged for a tenth of the time, and 21 % above it if for nine tenths.
BACKLOGGED = 0.05


def measured_trace(record: RunRecord, link: str) -> tuple[Trace, str]:
    """Return a link's throughput since training began, while its queue was backlogged, and a comment on its origin.

    Between backlogs the last rate holds, and before them the first: less was sent than the link could carry.

    Raises:
        TraceError: The run has no such link, or the link was never backlogged for long enough.
    """
    known = sorted({name for sample in record.samples for name in sample.bytes})
    try:
        link = find_link(link, known)
    except NoSuchLink:
        raise TraceError(
            f"{record.path}: the run has no link {link!r}; name one of {', '.join(known) or '(none)'}",
            rule="unknown-link",
            link=link,
        ) from None
    if not any(link in sample.steady_s for sample in record.samples):
        raise TraceError(
            f"{record.path}: the run did not record how long {link} had a queue, as a simulation or a launch on a "
            "network that is up; take one that `testbed run` made",
            rule="no-rate",
            link=link,
        )
    shares, rates = steady_rate(record.samples, link)
    rows = [
        Row(max(float(start), 0.0), max(float(rate), LEAST_BPS))
        for start, stop, rate, share in zip(rates.edges, rates.edges[1:], rates.values, shares.values, strict=False)
        if stop > 0 and share >= BACKLOGGED and not math.isnan(rate)
    ]
    if not rows:
        raise TraceError(
            f"{record.path}: {link} was hardly ever backlogged, so its rate is unknown", rule="no-rate", link=link
        )
    first = [Row(0.0, rows[0].rate_bps)] if rows[0].time_s > 0 else []
    scale = record.manifest.get("scale", 1)
    origin = f"throughput of {link} while backlogged in run {record.id}, scale {scale}"
    return Trace(lasting([*first, *rows], float(rates.edges[-1]))), origin
