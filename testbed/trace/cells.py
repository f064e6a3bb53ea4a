"""Tables in text: cells between commas, semicolons or tabs, numbers with a decimal point or a decimal comma.

time_s;rate_mbps        what a spreadsheet writes where the comma is the decimal sign
0;40
1,5;12,5
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress

from testbed.trace.trace import TraceError

#: A line's number, and its cells.
Cells = tuple[int, list[str]]

#: What a spreadsheet writes before the table to name the separator.
SEPARATOR = re.compile(r"sep=([,;\t])", re.IGNORECASE)

#: Numbers with a decimal comma, those of them that may as well be thousands (`1,500`), and numbers with a point.
COMMA = re.compile(r"[-+]?\d*,\d+(?:[eE][-+]?\d+)?")
THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2},\d{3}")
POINT = re.compile(r"[-+]?\d*\.\d+(?:[eE][-+]?\d+)?")
#: A whole number with a point between its thousands, which a decimal comma follows.
BOTH = re.compile(r"[-+]?\d{1,3}(?:\.\d{3})+,\d+")


def read_cells(lines: Sequence[tuple[int, str]]) -> list[Cells]:
    """Return the cells of numbered lines, without the space around them and with decimal points.

    The first line tells the separator: a comma, or where it has none a semicolon, or a tab.

    Raises:
        TraceError: names the line that is not CSV, or whose decimal sign is not clear.
    """
    lines = list(lines)
    separator = None
    if lines and (said := SEPARATOR.fullmatch(lines[0][1].strip())):
        separator, lines = said[1], lines[1:]
    if not lines:
        return []
    separator = separator or separator_of(lines[0][1])
    # With their ends, so that a quoted cell over several lines is not read as one without them.
    reader = csv.reader((f"{line}\n" for _, line in lines), delimiter=separator, strict=True)
    try:
        rows = [(lines[reader.line_num - 1][0], [cell.strip() for cell in cells]) for cells in reader]
    except csv.Error as error:
        number = lines[max(reader.line_num, 1) - 1][0]
        raise TraceError(f"line {number}: is not CSV: {error}", line=number, rule="csv") from None
    if separator == ",":
        # What stands in quotes may be a text that is not read: readers refuse what is no number where they want one.
        with suppress(TraceError):
            return with_points(rows)
        return rows
    return with_points(rows)


def separator_of(header: str) -> str:
    """Return what separates the cells of a table with this first line. What stands in quotes does not count."""
    bare = re.sub(r'"[^"]*"', "", header)
    return next((each for each in ",;\t" if each in bare), ",")


def with_points(rows: Sequence[Cells]) -> list[Cells]:
    """Return the rows with a decimal point in the numbers that have a decimal comma.

    Raises:
        TraceError: a number may be read in two ways; names the line.
    """
    commas = [(line, cell) for line, cell in _matching(rows, COMMA)]
    for line, cell in _matching(rows, BOTH):
        text = f"line {line}: {cell!r} has a point and a comma; write it with a decimal point alone"
        raise TraceError(text, line=line, rule="decimal-sign", given=cell)
    if not commas:
        return list(rows)
    if all(THOUSANDS.fullmatch(cell) for _, cell in commas):
        line, cell = commas[0]
        meant = f"{cell.replace(',', '.')} or {cell.replace(',', '')}"
        text = f"line {line}: {cell!r} may be {meant}; write it with a decimal point, or without the comma"
        raise TraceError(text, line=line, rule="decimal-sign", given=cell)
    for line, cell in _matching(rows, POINT):
        text = f"line {line}: {cell!r} has a point where {commas[0][1]!r} has a comma; write points alone"
        raise TraceError(text, line=line, rule="decimal-sign", given=cell)
    return [
        (line, [cell.replace(",", ".") if COMMA.fullmatch(cell) else cell for cell in cells]) for line, cells in rows
    ]


def _matching(rows: Sequence[Cells], form: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    return ((line, cell) for line, cells in rows for cell in cells if form.fullmatch(cell))
