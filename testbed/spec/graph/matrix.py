"""A matrix of round trips in CSV: a row and a column for each site, in ms, empty where unknown.

    ,Paris,Tokyo,Lima
    Paris,,221.5,190
    Tokyo,223,,
    Lima,,,

The first cell says nothing. A pair that was measured both ways has the mean of both; one of which neither cell is
filled is not joined. What a site's own cell says is not looked at.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from testbed.spec.errors import Fault, SpecError
from testbed.spec.graph.site_graph import GraphEdge, GraphNode, SiteGraph
from testbed.trace.text import text_of

#: A thousand rows of a thousand cells.
MOST_BYTES = 16 * 2**20

#: A link's delay is a minute at most, one way.
MOST_MS = 120_000.0


def read_matrix(file: Path) -> SiteGraph:
    """The graph of a matrix; SpecError names line and column of what is wrong in it."""
    try:
        text = text_of(file, MOST_BYTES)
    except (OSError, ValueError) as error:
        raise SpecError(file, [Fault("file", f"cannot be read: {error}", "a CSV file in UTF-8")]) from None
    # Spreadsheets write the mark at the front.
    reader = csv.reader(text.removeprefix("\ufeff").splitlines(), strict=True)
    try:
        rows = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader if any(map(str.strip, cells))]
    except csv.Error as error:
        raise SpecError(
            file, [Fault(f"line {reader.line_num}", f"is no CSV: {error}", "cells between commas")]
        ) from None
    if not rows:
        raise SpecError(file, [Fault("file", "is empty", "a row of names, then a row for each of them")])
    names = _names(file, rows)
    trips = {
        (name, other): trip
        for line, cells in rows[1:]
        for name in cells[:1]
        for other, cell in zip(names, cells[1:], strict=True)
        if name != other and (trip := _round_trip(file, f"line {line}, column {other}", cell)) is not None
    }
    edges = tuple(
        GraphEdge(a, b, delay_ms=sum(found) / len(found) / 2)
        for a, b in combinations(names, 2)
        if (found := [trips[pair] for pair in ((a, b), (b, a)) if pair in trips])
    )
    return SiteGraph({name: GraphNode(name) for name in names}, edges)


def _names(file: Path, rows: Sequence[tuple[int, list[str]]]) -> list[str]:
    """Those of the columns, if the rows have the same."""
    line, header = rows[0]
    names = header[1:]
    if not all(name and name.isprintable() for name in names):
        raise SpecError(file, [Fault(f"line {line}", "a column has no name", "a name for each column but the first")])
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise SpecError(file, [Fault(f"line {line}", f"{repeated!r} is the name of two columns", "each name once")])
    seen: set[str] = set()
    for line, cells in rows[1:]:
        if len(cells) != len(header):
            rule = f"has {len(cells)} cells where the first line has {len(header)}"
            raise SpecError(file, [Fault(f"line {line}", rule, "as many; an empty one where nothing is known")])
        if cells[0] not in names or cells[0] in seen:
            rule = f"{cells[0]!r} is the name of {'two rows' if cells[0] in seen else 'no column'}"
            raise SpecError(file, [Fault(f"line {line}", rule, "a row for each column, named like it")])
        seen.add(cells[0])
    if missing := next((name for name in names if name not in seen), None):
        rule = f"has no row for the column {missing!r}"
        raise SpecError(file, [Fault("file", rule, "a row for each column; its cells may be empty")])
    return names


def _round_trip(file: Path, field: str, cell: str) -> float | None:
    if not cell:
        return None
    try:
        milliseconds = float(cell)
    except ValueError:
        milliseconds = math.nan
    if not 0 <= milliseconds <= MOST_MS:
        remedy = f"milliseconds from 0 to {MOST_MS:g}, or an empty cell where nothing is known"
        raise SpecError(file, [Fault(field, f"{cell[:40]!r} is no round trip", remedy)])
    return milliseconds
