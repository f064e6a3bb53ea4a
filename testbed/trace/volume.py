"""What a link delivered over time, as a running total of bytes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Protocol

from testbed.trace.trace import Trace, TraceError


class Delivered(Protocol):
    """Anything that knows how many bytes of frames came through by a moment of its time, from 0 to its end."""

    @property
    def duration_s(self) -> float: ...

    def by(self, time_s: float) -> float:
        """Bytes of frames delivered before `time_s`."""


@dataclass(frozen=True, slots=True)
class Volume:
    """`total[i]` bytes of frames by `edges_s[i]`, evenly in between; edges rise, and both begin at 0."""

    edges_s: tuple[float, ...]
    total: tuple[float, ...]

    @classmethod
    def of_steps(cls, edges_s: Iterable[float], bytes_: Iterable[float]) -> Volume:
        """From the bytes delivered between edges; one edge more than steps."""
        return cls(tuple(edges_s), (0.0, *accumulate(bytes_)))

    @classmethod
    def of_trace(cls, trace: Trace) -> Volume:
        """What one lap of a trace lets through: nothing where all is lost. TraceError for a row without a rate."""
        edges = [*(row.time_s for row in trace.rows), trace.duration_s]
        carried = []
        for row, (start, stop) in zip(trace.rows, pairwise(edges), strict=True):
            if row.rate_bps is None:
                raise TraceError(
                    f"has no rate at {row.time_s:g} s; give each row a rate_mbps", rule="no-rate", given=row.time_s
                )
            carried.append(0.0 if row.loss == 1 else row.rate_bps / 8 * (stop - start))
        return cls.of_steps(edges, carried)

    @property
    def duration_s(self) -> float:
        return self.edges_s[-1]

    def by(self, time_s: float) -> float:
        """Bytes of frames delivered before `time_s`."""
        if time_s >= self.duration_s:
            return self.total[-1]
        i = bisect_right(self.edges_s, time_s) - 1
        share = (time_s - self.edges_s[i]) / (self.edges_s[i + 1] - self.edges_s[i])
        return self.total[i] + share * (self.total[i + 1] - self.total[i])
