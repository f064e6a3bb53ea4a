"""CSV files with a header of which some columns are wanted, in any order."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
    """Each line's cells of the columns `needed`, and of those `wanted` that are there. TraceError names the line."""
    reader = csv.reader((line.removeprefix("\ufeff") for line in lines), strict=True)
    header: list[str] = []
    try:
        for cells in reader:
            cells = [cell.strip() for cell in cells]
            if not any(cells):
                continue
            if not header:
                header = cells
                _check(header, needed, reader.line_num)
                places = {name: header.index(name) for name in (*needed, *wanted) if name in header}
                continue
            if len(cells) < len(header):
                rule = f"has {len(cells)} cells where the header has {len(header)}"
                raise TraceError(
                    f"line {reader.line_num}: {rule}; write one for each column",
                    line=reader.line_num,
                    rule="cells",
                    given=len(cells),
                )
            yield Record(reader.line_num, {name: cells[place] for name, place in places.items()})
    except csv.Error as error:
        raise TraceError(f"line {reader.line_num}: is not CSV: {error}", line=reader.line_num, rule="csv") from None
    if not header:
        raise TraceError(f"is empty; begin with a header that has {', '.join(needed)}", rule="empty")


def _check(header: Sequence[str], needed: Sequence[str], line: int) -> None:
    if missing := [name for name in needed if name not in header]:
        raise TraceError(
            f"line {line}: the header has no column {missing[0]!r}; it must have {', '.join(needed)}",
            line=line,
            rule="missing-column",
            field=missing[0],
        )
