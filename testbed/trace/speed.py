"""Traces of a worker's speed: CSV with a header of `time_s,speed`.

    # where it is from
    time_s,speed
    0,1
    20,0.25
    30,1

Each row holds until the next. When the last one is reached, the trace begins again.
"""

from __future__ import annotations

import math
from pathlib import Path

from testbed.trace.table import read_cells
from testbed.trace.text import numbered, read_text
from testbed.trace.trace import TraceError, naming_file

#: (seconds since training began, speed), by rising time from 0 on.
Speeds = tuple[tuple[float, float], ...]

HEADER = ["time_s", "speed"]
LEAST_SPEED, MOST_SPEED = 1e-3, 1e3
#: Every worker is told its trace when it joins.
MOST_ROWS = 10_000


def read_speeds(path: Path) -> Speeds:
    """Return the trace of a worker's speed in a file. TraceError names the file and the line."""
    with naming_file(path):
        table = read_cells(numbered(read_text(path).splitlines()))
        if table and table[0][1] != HEADER:
            text = f"the header is {','.join(table[0][1])[:60]!r}; write `{','.join(HEADER)}`"
            raise TraceError(text, rule="header").at_line(table[0][0])
        rows: list[tuple[float, float]] = []
        for number, cells in table[1:]:
            try:
                rows.append(_row(cells, rows[-1][0] if rows else None))
            except TraceError as error:
                raise error.at_line(number) from None
        if len(rows) < 2 or len(rows) > MOST_ROWS:
            text = f"the file has {len(rows)} rows; write 2 to {MOST_ROWS}, the last one where the trace begins again"
            raise TraceError(text, rule="rows", given=len(rows))
    return tuple(rows)


def _row(cells: list[str], before: float | None) -> tuple[float, float]:
    """Return (seconds, speed) of a row. TraceError unless its time is after `before`, or 0 in the first row (None)."""
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
