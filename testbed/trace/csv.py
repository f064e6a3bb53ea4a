"""Trace files: CSV with a header of `time_s` and any of `rate_mbps`, `delay_ms`, `jitter_ms`, `loss_pct`.

    # lines that begin with a hash say where the trace is from
    time_s,rate_mbps,delay_ms
    0,40,55
    1.5,12.5,60

An empty cell leaves the link's own value. Each row holds until the next. Semicolons or tabs may stand for the commas,
and then decimal commas for the points.

The trace of a worker's speed has a header of `time_s,speed`. When its last row is reached, the trace begins again.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import pairwise
from numbers import Real
from pathlib import Path

from testbed.atomic_file import write_text
from testbed.trace.table import read_cells
from testbed.trace.text import as_line, numbered, read_text
from testbed.trace.trace import End, Row, Trace, TraceError, naming_file, with_possible_rates

#: Column → (field of Row, the column's unit in the field's unit, greatest value allowed).
COLUMNS = {
    "rate_mbps": ("rate_bps", 1e6, 100_000.0),
    "delay_ms": ("delay_s", 1e-3, 60_000.0),
    "jitter_ms": ("jitter_s", 1e-3, 60_000.0),
    "loss_pct": ("loss", 1e-2, 100.0),
}
#: The latest time of a row, in seconds.
MOST_TIME_S = 1e9


def parse_csv(lines: Sequence[str], end: End = "loop") -> Trace:
    """Return the trace in the lines of a file. Raises TraceError with the line."""
    table = read_cells(numbered(lines))
    if not table:
        raise TraceError("the file has no header; begin with a line such as `time_s,rate_mbps`", rule="header")
    (first, header), *body = table
    if header[0] != "time_s" or len(header) < 2 or len(set(header)) != len(header):
        found = ",".join(header)[:60]
        text = f"the header is {found!r}; write `time_s` and then some of {', '.join(COLUMNS)}, each once"
        raise TraceError(text, rule="header").at_line(first)
    if header == SPEED_HEADER:
        text = "the file is a trace of speed: name it under an experiment's `compute.speeds`, and check the experiment"
        raise TraceError(text, rule="speeds").at_line(first)
    if unknown := [name for name in header[1:] if name not in COLUMNS]:
        text = f"no column is named {unknown[0]!r}; write some of {', '.join(COLUMNS)}"
        raise TraceError(text, rule="unknown-column", field=unknown[0]).at_line(first)
    rows: list[Row] = []
    for number, cells in body:
        try:
            rows.append(_row(header, cells))
            if len(rows) > 1 and rows[-1].time_s <= rows[-2].time_s:
                text = f"time {rows[-1].time_s:g} s follows {rows[-2].time_s:g} s; sort the rows, each time once"
                raise TraceError(text, rule="order", given=rows[-1].time_s)
        except TraceError as error:
            raise error.at_line(number) from None
    trace = Trace(with_possible_rates(rows), end)
    if not any(getattr(row, field) is not None for row in rows for field, _, _ in COLUMNS.values()):
        raise TraceError("no row has a value; write one or more", rule="no-values")
    return trace


def _row(header: Sequence[str], cells: Sequence[str]) -> Row:
    if any("\n" in cell for cell in cells):
        raise TraceError("a quoted cell goes over several lines; write plain numbers", rule="csv")
    if len(cells) != len(header):
        text = f"the row has {len(cells)} cells where the header has {len(header)}; write one for each column"
        raise TraceError(text, rule="cells", given=len(cells))
    values: dict[str, float] = {}
    for name, cell in zip(header[1:], cells[1:], strict=True):
        if cell.strip():
            field, unit, most = COLUMNS[name]
            values[field] = _number(name, cell, most) * unit
    if values.get("rate_bps") == 0:
        text = "rate_mbps is 0, which is no rate; write loss_pct 100 where the link carries nothing"
        raise TraceError(text, rule="range", field="rate_mbps", given=0.0)
    return Row(_number("time_s", cells[0], MOST_TIME_S), **values)


def _number(name: str, cell: str, most: float) -> float:
    try:
        value = float(cell)
    except ValueError:
        text = f"{name} is {cell.strip()!r}; write a number"
        raise TraceError(text, rule="number", field=name, given=cell.strip()) from None
    if not (math.isfinite(value) and 0 <= value <= most):
        raise TraceError(f"{name} is {value:g}; write 0 to {most:g}", rule="range", field=name, given=value)
    return value


def check_values(trace: Trace) -> None:
    """Raise TraceError if a value of a trace is out of its column's range, so that its file could not be read again."""
    limits = {"time_s": MOST_TIME_S, **{field: unit * most for field, unit, most in COLUMNS.values()}}
    for row in trace.rows:
        for field, most in limits.items():
            value = getattr(row, field)
            is_number = isinstance(value, Real)
            if value is not None and not (is_number and 0 <= value <= most):
                where = "the time_s of a row" if field == "time_s" else f"{field} at {row.time_s:g} s"
                text = f"{where} is {value!r:.60}; write a number from 0 to {most:g}"
                raise TraceError(text, rule="range", field=field, given=value)
    with_possible_rates(trace.rows)


def write_csv(path: Path, trace: Trace, comments: Iterable[str] = ()) -> None:
    """Write a trace with the columns that it uses, its values to six digits. The comments come first."""
    used = [name for name, (field, _, _) in COLUMNS.items() if any(getattr(r, field) is not None for r in trace.rows)]
    text = StringIO()
    text.writelines(f"# {as_line(comment)}\n" for comment in comments)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["time_s", *used])
    for row in trace.rows:
        writer.writerow([f"{row.time_s:.15g}", *(_cell(getattr(row, COLUMNS[n][0]), COLUMNS[n][1]) for n in used)])
    write_text(path, text.getvalue())


def _cell(value: float | None, unit: float) -> str:
    return "" if value is None else f"{value / unit:.6g}"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a trace, in the unit of trace files."""

    name: str
    #: The begin of each value, and the end of the last one: one more than `values`.
    edges_s: tuple[float, ...]
    #: None leaves the link's own value.
    values: tuple[float | None, ...]

    @property
    def least(self) -> float:
        """The least of the column's values. Rows that leave the column empty do not count."""
        return min(value for value in self.values if value is not None)

    @property
    def most(self) -> float:
        """The greatest of the column's values. Rows that leave the column empty do not count."""
        return max(value for value in self.values if value is not None)

    @property
    def mean(self) -> float:
        """The mean of the column's values over time. Rows that leave the column empty do not count."""
        spans = zip(pairwise(self.edges_s), self.values, strict=True)
        weighed = [(stop - start, value) for (start, stop), value in spans if value is not None]
        return sum(length * value for length, value in weighed) / sum(length for length, _ in weighed)


def columns_of(trace: Trace) -> Iterator[Column]:
    """Yield the columns that a trace uses, over one lap from its first row."""
    edges = (*(row.time_s for row in trace.rows), trace.duration_s)
    for name, (field, unit, _) in COLUMNS.items():
        values = tuple(None if (value := getattr(row, field)) is None else value / unit for row in trace.rows)
        if any(value is not None for value in values):
            yield Column(name, edges, values)


#: (seconds since training began, speed), by rising time from 0 on.
Speeds = tuple[tuple[float, float], ...]

SPEED_HEADER = ["time_s", "speed"]
LEAST_SPEED, MOST_SPEED = 1e-3, 1e3
#: Every worker is told its trace when it joins.
MOST_ROWS = 10_000


def read_speeds(path: Path) -> Speeds:
    """Return the trace of a worker's speed in a file. Raises TraceError with the file and the line."""
    with naming_file(path):
        table = read_cells(numbered(read_text(path).splitlines()))
        if table and table[0][1] != SPEED_HEADER:
            text = f"the header is {','.join(table[0][1])[:60]!r}; write `{','.join(SPEED_HEADER)}`"
            raise TraceError(text, rule="header").at_line(table[0][0])
        rows: list[tuple[float, float]] = []
        for number, cells in table[1:]:
            try:
                rows.append(_speed_row(cells, rows[-1][0] if rows else None))
            except TraceError as error:
                raise error.at_line(number) from None
        if len(rows) < 2 or len(rows) > MOST_ROWS:
            text = f"the file has {len(rows)} rows; write 2 to {MOST_ROWS}, the last one where the trace begins again"
            raise TraceError(text, rule="rows", given=len(rows))
    return tuple(rows)


def _speed_row(cells: list[str], before: float | None) -> tuple[float, float]:
    """Return (seconds, speed) of a row. Raises TraceError unless the time is after `before`, or 0 if that is None."""
    given = ",".join(cells)
    try:
        time_s, speed = map(float, cells)
    except ValueError:
        raise TraceError(
            f"the row is {given!r}; write two numbers, time and speed", rule="number", given=given
        ) from None
    if not (math.isfinite(time_s) and LEAST_SPEED <= speed <= MOST_SPEED):
        text = f"the row is {given!r}; write a finite time and a speed from {LEAST_SPEED:g} to {MOST_SPEED:g}"
        raise TraceError(text, rule="range", field="speed", given=speed)
    if before is None and time_s:
        text = f"the first row is at {time_s:g} s; begin at 0"
        raise TraceError(text, rule="begin", field="time_s", given=time_s)
    if before is not None and time_s <= before:
        text = f"time {time_s:g} s follows {before:g} s; sort the rows, each time once"
        raise TraceError(text, rule="order", field="time_s", given=time_s)
    return time_s, speed
