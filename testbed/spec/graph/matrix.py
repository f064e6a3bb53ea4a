"""Matrices of round trips in CSV: a row and a column for each site, in ms; a cell is empty where nothing is known.

    ,Paris,Tokyo,Lima
    Paris,,221.5,190
    Tokyo,223,,
    Lima,,,

The first cell may name the unit of all cells (`s`, `rtt_us`), and a cell its own (`0.22 s`). A matrix without units
whose values can't be ms is refused. A pair that was measured both ways has the mean of both; a pair without a round
trip gets no link. The cell of a site and itself is not read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from testbed.spec.errors import Fault, SpecError
from testbed.spec.graph.site_graph import GraphEdge, GraphNode, SiteGraph
from testbed.trace.quantity import TIMES_MS, QuantityError, doubtful_round_trips, in_units, is_unknown
from testbed.trace.table import read_cells
from testbed.trace.text import text_of
from testbed.trace.trace import TraceError

#: The longest file: a thousand rows of a thousand cells.
MOST_BYTES = 16 * 2**20

#: The longest round trip: a link's delay is a minute at most, one way.
MOST_MS = 120_000.0

#: The greatest ratio of a pair's two round trips: at 1,000 one has another unit, at 100 one is not of this pair.
MOST_RATIO = 100.0


def read_matrix(file: Path) -> SiteGraph:
    """Return the graph of a matrix. SpecError names the line and the column that are wrong."""
    try:
        text = text_of(file, MOST_BYTES)
    except (OSError, ValueError) as error:
        raise SpecError(file, [Fault("file", f"the file can't be read: {error}", "a CSV file in UTF-8")]) from None
    filled = ((number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip())
    # A first cell may be `#`; a comment has a space after it.
    lines = [(number, line) for number, line in filled if not line.startswith("# ")]
    try:
        rows = [row for row in read_cells(lines) if any(row[1])]
    except TraceError as error:
        field, _, rule = str(error).partition(": ")
        raise SpecError(file, [Fault(field, rule, "numbers with a decimal point, cells between commas")]) from None
    if not rows:
        raise SpecError(file, [Fault("file", "the file is empty", "a row of names, then a row for each of them")])
    names = _names(file, rows)
    unit = _unit_of(rows[0][1][0])
    unitless: list[float] = []
    trips = {
        (name, other): trip
        for line, cells in rows[1:]
        for name in cells[:1]
        for other, cell in zip(names, cells[1:], strict=True)
        if name != other
        and (trip := _round_trip(file, f"line {line}, column {other}", cell, unit, unitless)) is not None
    }
    if doubt := doubtful_round_trips(unitless):
        remedy = "the unit of all cells in the first cell, such as ms, s or us"
        raise SpecError(file, [Fault(f"line {rows[0][0]}", f"the matrix has no unit, and {doubt}", remedy)])
    for (a, b), trip in trips.items():
        back = trips.get((b, a), 0.0)
        if min(trip, back) > 0 and trip > back * MOST_RATIO:
            rule = f"{a} to {b} is {trip:g} ms and {b} to {a} is {back:g} ms, too different for one pair"
            raise SpecError(file, [Fault("file", rule, "both in one unit, or one of them alone")])
    edges = tuple(
        GraphEdge(a, b, delay_ms=sum(found) / len(found) / 2)
        for a, b in combinations(names, 2)
        if (found := [trips[pair] for pair in ((a, b), (b, a)) if pair in trips])
    )
    return SiteGraph({name: GraphNode(name) for name in names}, edges)


def _names(file: Path, rows: Sequence[tuple[int, list[str]]]) -> list[str]:
    line, header = rows[0]
    names = header[1:]
    if not all(name and name.isprintable() for name in names):
        raise SpecError(file, [Fault(f"line {line}", "a column has no name", "a name for each column but the first")])
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise SpecError(file, [Fault(f"line {line}", f"two columns are named {repeated!r}", "each name once")])
    seen: set[str] = set()
    for line, cells in rows[1:]:
        if len(cells) != len(header):
            rule = f"the line has {len(cells)} cells where the first line has {len(header)}"
            raise SpecError(file, [Fault(f"line {line}", rule, "as many; an empty one where nothing is known")])
        if cells[0] not in names or cells[0] in seen:
            rule = f"{'two rows are' if cells[0] in seen else 'no column is'} named {cells[0]!r}"
            raise SpecError(file, [Fault(f"line {line}", rule, "a row for each column, named like it")])
        seen.add(cells[0])
    if missing := next((name for name in names if name not in seen), None):
        rule = f"the file has no row for the column {missing!r}"
        raise SpecError(file, [Fault("file", rule, "a row for each column; its cells may be empty")])
    return names


def _unit_of(corner: str) -> float | None:
    """Return how many ms the unit in the first cell has, or None where the cell has no unit."""
    words = re.split(r"[\s_()\[\]/,:]+", corner.lower())
    # `min` means the minimum of several round trips here, not a minute.
    return next((TIMES_MS[word] for word in reversed(words) if word in TIMES_MS and word != "min"), None)


def _round_trip(file: Path, field: str, cell: str, unit: float | None, unitless: list[float]) -> float | None:
    """Return a cell in ms, or None if it is empty. A value without any unit is also appended to `unitless`."""
    if is_unknown(cell):
        return None
    remedy = f"milliseconds from 0 to {MOST_MS:g}, or an empty cell where nothing is known"
    try:
        milliseconds, has_unit = in_units(cell, TIMES_MS)
    except QuantityError as error:
        raise SpecError(file, [Fault(field, f"{cell[:40]!r} {error}", remedy)]) from None
    if not has_unit and unit is not None:
        milliseconds *= unit
    elif not has_unit:
        unitless.append(milliseconds)
    if not 0 <= milliseconds <= MOST_MS:
        raise SpecError(file, [Fault(field, f"the round trip {cell[:40]!r} is out of range", remedy)])
    return milliseconds
