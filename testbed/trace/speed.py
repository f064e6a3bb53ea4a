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

from testbed.trace.cells import read_cells
from testbed.trace.text import numbered, read_text
from testbed.trace.trace import TraceError

#: (seconds since training began, speed), by rising time from 0 on.
Speeds = tuple[tuple[float, float], ...]

HEADER = ["time_s", "speed"]
LEAST_SPEED, MOST_SPEED = 1e-3, 1e3
#: Every worker is told its trace when it joins.
MOST_ROWS = 10_000


def read_speeds(path: Path) -> Speeds:
    """The trace in a file; TraceError, naming file and line, when it is none."""
    try:
        table = read_cells(numbered(read_text(path).splitlines()))
    except TraceError as error:
        raise error if error.file else error.located(path, file=path) from None
    if table and table[0][1] != HEADER:
        text = f"{path}: line {table[0][0]}: the header must be `{','.join(HEADER)}`"
        raise TraceError(text, line=table[0][0], file=path, rule="header")
    rows: list[tuple[float, float]] = []
    for number, cells in table[1:]:
        rows.append(_row(path, number, cells, rows[-1][0] if rows else None))
    if len(rows) < 2 or len(rows) > MOST_ROWS:
        raise TraceError(
            f"{path}: has {len(rows)} rows; write 2 to {MOST_ROWS}, the last one where it begins again",
            file=path,
            rule="rows",
            given=len(rows),
        )
    return tuple(rows)


def _row(path: Path, number: int, cells: list[str], before: float | None) -> tuple[float, float]:
    try:
        time_s, speed = map(float, cells)
    except ValueError:
        raise TraceError(
            f"{path}: line {number}: {','.join(cells)!r} is not two numbers, time and speed",
            line=number,
            file=path,
            rule="number",
            given=",".join(cells),
        ) from None
    if not (math.isfinite(time_s) and LEAST_SPEED <= speed <= MOST_SPEED):
        raise TraceError(
            f"{path}: line {number}: speed {speed:g} must be between {LEAST_SPEED:g} and {MOST_SPEED:g}",
            line=number,
            file=path,
            rule="range",
            field="speed",
            given=speed,
        )
    if before is None and time_s:
        raise TraceError(
            f"{path}: line {number}: the first row is at {time_s:g} s; begin at 0",
            line=number,
            file=path,
            rule="begin",
            field="time_s",
            given=time_s,
        )
    if before is not None and time_s <= before:
        raise TraceError(
            f"{path}: line {number}: time {time_s:g} s does not come after {before:g} s; sort the rows",
            line=number,
            file=path,
            rule="order",
            field="time_s",
            given=time_s,
        )
    return time_s, speed
