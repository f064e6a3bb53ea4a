"""What a trace amounts to: how long it is, and each column's least, mean and most."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from testbed.trace.csv import COLUMNS
from testbed.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a trace file, in its own unit. `edges_s` is one longer than `values`; None leaves the link's own.

    `mean` is over time, of what is given.
    """

    name: str
    edges_s: tuple[float, ...]
    values: tuple[float | None, ...]

    @property
    def least(self) -> float:
        return min(value for value in self.values if value is not None)

    @property
    def most(self) -> float:
        return max(value for value in self.values if value is not None)

    @property
    def mean(self) -> float:
        spans = zip(pairwise(self.edges_s), self.values, strict=True)
        weighed = [(stop - start, value) for (start, stop), value in spans if value is not None]
        return sum(length * value for length, value in weighed) / sum(length for length, _ in weighed)


def columns_of(trace: Trace) -> Iterator[Column]:
    """The columns that the trace uses, over one lap from its first row."""
    edges = (*(row.time_s for row in trace.rows), trace.duration_s)
    for name, (field, unit, _) in COLUMNS.items():
        values = tuple(None if (value := getattr(row, field)) is None else value / unit for row in trace.rows)
        if any(value is not None for value in values):
            yield Column(name, edges, values)
