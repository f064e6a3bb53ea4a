"""Trace files: CSV with a header of `time_s` and any of `rate_mbps`, `delay_ms`, `jitter_ms`, `loss_pct`.

    # lines that begin with a hash say where the trace is from
    time_s,rate_mbps,delay_ms
    0,40,55
    1.5,12.5,60

An empty cell leaves the link's own value. Each row holds until the next. Semicolons or tabs may stand for the commas,
and then decimal commas for the points.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path

from testbed.atomic_file import write_text
from testbed.trace.cells import read_cells
from testbed.trace.text import numbered, read_text
from testbed.trace.trace import End, Row, Trace, TraceError, with_possible_rates

#: Column → (field of Row, what one unit of the column is in the field's unit, greatest value allowed).
COLUMNS = {
    "rate_mbps": ("rate_bps", 1e6, 100_000.0),
    "delay_ms": ("delay_s", 1e-3, 60_000.0),
    "jitter_ms": ("jitter_s", 1e-3, 60_000.0),
    "loss_pct": ("loss", 1e-2, 100.0),
}


def read_csv(path: Path, end: End = "loop") -> Trace:
    """The trace in a file. Raises TraceError, naming file and line, when it cannot be replayed."""
    text = read_text(path)
    try:
        return parse_csv(text.splitlines(), end)
    except TraceError as error:
        raise error.located(path, file=path) from None


def parse_csv(lines: Sequence[str], end: End = "loop") -> Trace:
    """The trace in the lines of a file; TraceError names the line."""
    table = read_cells(numbered(lines))
    if not table:
        raise TraceError("has no header; begin with a line such as `time_s,rate_mbps`", rule="header")
    (first, header), *body = table
    if header[0] != "time_s" or len(header) < 2 or len(set(header)) != len(header):
        found = f"(got {','.join(header):.60})"
        text = f"line {first}: the header must be `time_s` and then some of {', '.join(COLUMNS)} {found}"
        raise TraceError(text, line=first, rule="header")
    if unknown := [name for name in header[1:] if name not in COLUMNS]:
        text = f"line {first}: unknown column {unknown[0]!r}; known: {', '.join(COLUMNS)}"
        raise TraceError(text, line=first, rule="unknown-column", field=unknown[0])
    rows: list[Row] = []
    for number, cells in body:
        try:
            rows.append(_row(header, cells))
            if len(rows) > 1 and rows[-1].time_s <= rows[-2].time_s:
                raise TraceError(
                    f"time {rows[-1].time_s:g} s does not come after {rows[-2].time_s:g} s; sort the rows",
                    rule="order",
                    given=rows[-1].time_s,
                )
        except TraceError as error:
            raise error.located(f"line {number}", line=number) from None
    return Trace(with_possible_rates(rows), end)


def _row(header: Sequence[str], cells: Sequence[str]) -> Row:
    if any("\n" in cell for cell in cells):
        raise TraceError("has a quoted cell over several lines; write plain numbers", rule="csv")
    if len(cells) != len(header):
        raise TraceError(f"has {len(cells)} cells where the header has {len(header)}", rule="cells", given=len(cells))
    values: dict[str, float] = {}
    for name, cell in zip(header[1:], cells[1:], strict=True):
        if cell.strip():
            field, unit, most = COLUMNS[name]
            values[field] = _number(name, cell, most) * unit
    if values.get("rate_bps") == 0:
        raise TraceError(
            "rate_mbps 0 has no meaning as a rate; take the link down with loss_pct 100",
            rule="range",
            field="rate_mbps",
            given=0.0,
        )
    return Row(_number("time_s", cells[0], 1e9), **values)


def _number(name: str, cell: str, most: float) -> float:
    try:
        value = float(cell)
    except ValueError:
        raise TraceError(
            f"{name} {cell.strip()!r} is not a number", rule="number", field=name, given=cell.strip()
        ) from None
    if not (math.isfinite(value) and 0 <= value <= most):
        raise TraceError(f"{name} {value:g} must be between 0 and {most:g}", rule="range", field=name, given=value)
    return value


def write_csv(path: Path, trace: Trace, comments: Iterable[str] = ()) -> None:
    """Write the trace with the columns it uses, values to six digits; the comments say where it is from."""
    used = [name for name, (field, _, _) in COLUMNS.items() if any(getattr(r, field) is not None for r in trace.rows)]
    text = StringIO()
    text.writelines(f"# {comment}\n" for comment in comments)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["time_s", *used])
    for row in trace.rows:
        writer.writerow([f"{row.time_s:.15g}", *(_cell(getattr(row, COLUMNS[n][0]), COLUMNS[n][1]) for n in used)])
    write_text(path, text.getvalue())


def _cell(value: float | None, unit: float) -> str:
    return "" if value is None else f"{value / unit:.6g}"
