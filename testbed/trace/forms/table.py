"""CSV files with a header of which some columns are wanted, in any order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile

from testbed.trace.cells import read_cells
from testbed.trace.trace import TraceError


@dataclass(frozen=True, slots=True)
class Record:
    """A line of the file: its number, and the cells of the columns that are there."""

    line: int
    cells: dict[str, str]

    def number(self, column: str, least: float, most: float) -> float:
        """The cell as a number in these limits; TraceError names line and column."""
        try:
            value = float(self.cells[column])
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            shown = self.cells[column][:40]
            raise TraceError(
                f"line {self.line}: {column} {shown!r} must be a number from {least:g} to {most:g}",
                line=self.line,
                rule="number",
                field=column,
                given=shown,
            )
        return value


def read_records(lines: Sequence[str], needed: Sequence[str], wanted: Sequence[str] = ()) -> Iterator[Record]:
    """Yield each line's cells of the columns `needed`, and of those `wanted` that are there.

    Lines before the header that begin with `#` are comments. TraceError names the line.
    """
    said = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    table = [row for row in read_cells(list(dropwhile(_is_comment, said))) if any(row[1])]
    if not table:
        raise TraceError(f"is empty; begin with a header that has {', '.join(needed or wanted)}", rule="empty")
    (first, header), *body = table
    _check(header, needed, wanted, first)
    places = {name: header.index(name) for name in (*needed, *wanted) if name in header}
    for number, cells in body:
        if len(cells) < len(header) or any(cells[len(header) :]):
            rule = f"has {len(cells)} cells where the header has {len(header)}"
            text = f"line {number}: {rule}; write one for each column"
            raise TraceError(text, line=number, rule="cells", given=len(cells))
        yield Record(number, {name: cells[place] for name, place in places.items()})


def _is_comment(numbered: tuple[int, str]) -> bool:
    return numbered[1].lstrip().startswith("#")


def _check(header: Sequence[str], needed: Sequence[str], wanted: Sequence[str], line: int) -> None:
    for name in (*needed, *wanted):
        if header.count(name) > 1:
            text = f"line {line}: {name!r} is the name of two columns; write each name once"
            raise TraceError(text, line=line, rule="two-columns", field=name)
    if missing := [name for name in needed if name not in header]:
        raise TraceError(
            f"line {line}: the header has no column {missing[0]!r}; it must have {', '.join(needed)}",
            line=line,
            rule="missing-column",
            field=missing[0],
        )
