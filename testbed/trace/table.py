"""Tables in text: cells between commas, semicolons or tabs, numbers with a decimal point or a decimal comma.

time_s;rate_mbps        what a spreadsheet writes where the comma is the decimal sign
0;40
1,5;12,5
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import dropwhile

from testbed.trace.trace import TraceError

#: A line's number, and its cells.
Cells = tuple[int, list[str]]

#: The line that a spreadsheet writes before a table to name the separator.
SEPARATOR = re.compile(r"sep=([,;\t])", re.IGNORECASE)

#: Numbers with a decimal comma; those of them that may be thousands as well (`1,500`); and numbers with a point.
COMMA = re.compile(r"[-+]?\d*,\d+(?:[eE][-+]?\d+)?")
THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2},\d{3}")
POINT = re.compile(r"[-+]?\d*\.\d+(?:[eE][-+]?\d+)?")
#: A number with points between its thousands and a decimal comma.
BOTH = re.compile(r"[-+]?\d{1,3}(?:\.\d{3})+,\d+")


def read_cells(lines: Sequence[tuple[int, str]]) -> list[Cells]:
    """Return the cells of numbered lines, without the space around them and with decimal points.

    The first line tells the separator: a comma; a semicolon where the line has no comma; else a tab.

    Raises:
        TraceError: A line is not CSV, or its decimal sign is not clear; names the line.
    """
    lines = list(lines)
    separator = None
    if lines and (named := SEPARATOR.fullmatch(lines[0][1].strip())):
        separator, lines = named[1], lines[1:]
    if not lines:
        return []
    # Quoted text does not tell the separator.
    unquoted = re.sub(r'"[^"]*"', "", lines[0][1])
    separator = separator or next((each for each in ",;\t" if each in unquoted), ",")
    # The lines get their ends back, so that a quoted cell over several lines keeps them.
    reader = csv.reader((f"{line}\n" for _, line in lines), delimiter=separator, strict=True)
    try:
        rows = [(lines[reader.line_num - 1][0], [cell.strip() for cell in cells]) for cells in reader]
    except csv.Error as error:
        number = lines[max(reader.line_num, 1) - 1][0]
        raise TraceError(f"the line is not CSV: {error}", rule="csv").at_line(number) from None
    if separator == ",":
        # A quoted cell may be a text that no reader looks at; a reader refuses it where a number is needed.
        with suppress(TraceError):
            return with_points(rows)
        return rows
    return with_points(rows)


def with_points(rows: Sequence[Cells]) -> list[Cells]:
    """Return the rows with a decimal point in each number that has a decimal comma.

    Raises:
        TraceError: A number can be read in two ways; names the line.
    """

    def unclear(line: int, cell: str, text: str) -> TraceError:
        return TraceError(f"{cell!r} {text}", rule="decimal-sign", given=cell).at_line(line)

    commas = [*_matching(rows, COMMA)]
    for line, cell in _matching(rows, BOTH):
        raise unclear(line, cell, "has a point and a comma; write it with a decimal point alone")
    if not commas:
        return list(rows)
    if all(THOUSANDS.fullmatch(cell) for _, cell in commas):
        line, cell = commas[0]
        meant = f"{cell.replace(',', '.')} or {cell.replace(',', '')}"
        raise unclear(line, cell, f"may be {meant}; write it with a decimal point, or without the comma")
    for line, cell in _matching(rows, POINT):
        raise unclear(line, cell, f"has a point where {commas[0][1]!r} has a comma; write points alone")
    return [
        (line, [cell.replace(",", ".") if COMMA.fullmatch(cell) else cell for cell in cells]) for line, cells in rows
    ]


def _matching(rows: Sequence[Cells], pattern: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    return ((line, cell) for line, cells in rows for cell in cells if pattern.fullmatch(cell))


@dataclass(frozen=True, slots=True)
class Record:
    """A line below a header."""

    #: The number of the line, from 1.
    line: int
    #: The number of the header's line.
    header: int
    #: The cells by the names of their columns.
    cells: dict[str, str]

    def number(self, column: str, least: float, most: float) -> float:
        """Return the cell as a number between these limits. Raises TraceError with the line and the column if not."""
        try:
            value = float(self.cells[column])
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            shown = self.cells[column][:40]
            text = f"{column} is {shown!r}; write a number from {least:g} to {most:g}"
            raise TraceError(text, rule="number", field=column, given=shown).at_line(self.line)
        return value


def read_records(lines: Sequence[str], needed: Sequence[str], wanted: Sequence[str] = ()) -> Iterator[Record]:
    """Yield each line below a header, in whose columns any order will do.

    Args:
        lines: The lines of the file. Lines before the header that begin with `#` are comments.
        needed: The columns that the header must have.
        wanted: The columns that are read where the header has them.

    Raises:
        TraceError: The header lacks a column or has one twice, or a line has another number of cells; names the line.
    """
    filled = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    table = read_cells(list(dropwhile(lambda numbered: numbered[1].lstrip().startswith("#"), filled)))
    table = [row for row in table if any(row[1])]
    if not table:
        raise TraceError(f"the file is empty; begin with a header with {', '.join(needed or wanted)}", rule="empty")
    (first, header), *body = table
    for name in (*needed, *wanted):
        if header.count(name) > 1:
            text = f"two columns are named {name!r}; write each name once"
            raise TraceError(text, rule="two-columns", field=name).at_line(first)
    if missing := [name for name in needed if name not in header]:
        text = f"the header has no column {missing[0]!r}; it needs {', '.join(needed)}"
        raise TraceError(text, rule="missing-column", field=missing[0]).at_line(first)
    columns = {name: header.index(name) for name in (*needed, *wanted) if name in header}
    for number, cells in body:
        if len(cells) < len(header) or any(cells[len(header) :]):
            text = f"the line has {len(cells)} cells where the header has {len(header)}; write one for each column"
            raise TraceError(text, rule="cells", given=len(cells)).at_line(number)
        yield Record(number, first, {name: cells[place] for name, place in columns.items()})
