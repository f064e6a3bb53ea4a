"""A trace: rows of a link's rate, delay, jitter and loss, each in force until the next."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise
from typing import Literal

from testbed.errors import BAD_INPUT, DetailedError
from testbed.link import Delivery, LinkState, Opportunities

End = Literal["loop", "hold", "stop"]


#: A full frame takes twelve seconds; the kernel counts rates in whole bytes a second.
LEAST_RATE_BPS = 1e3
#: Past any host.
MOST_RATE_BPS = 100e9

#: In the mean: one a millisecond, and two in the last step of a resampled trace. A loop of two rows within a
#: microsecond would leave the replay no time for anything else.
MOST_ROWS_A_SECOND = 2000


#: Rates of steps that carry the same, from sums of bytes, differ in their last digits.
SAME = 1e-9


class TraceError(DetailedError, ValueError):
    """A trace that cannot be replayed; the text says which rule it broke and what to write instead."""

    exit_code = BAD_INPUT


@dataclass(frozen=True, slots=True)
class Row:
    """From `time_s` on; None leaves the link's own value. Rate in bit/s, times in s, loss in [0, 1]."""

    time_s: float
    rate_bps: float | None = None
    delay_s: float | None = None
    jitter_s: float | None = None
    loss: float | None = None

    def over(self, state: LinkState) -> LinkState:
        """The link's state with this row in force. (`replace` takes 4 µs, and 500 links may be due at once.)"""
        return LinkState(
            rate_bps=state.rate_bps if self.rate_bps is None else self.rate_bps,
            delay_s=state.delay_s if self.delay_s is None else self.delay_s,
            jitter_s=state.jitter_s if self.jitter_s is None else self.jitter_s,
            loss=state.loss if self.loss is None else self.loss,
            queue=state.queue,
            up=state.up,
            bursts=state.bursts if self.loss is None else None,
            reorder=state.reorder,
            delivery=state.delivery,
        )

    def says_as(self, other: Row) -> bool:
        """Return whether the link is the same with either row in force."""
        return (
            _same(self.rate_bps, other.rate_bps)
            and _same(self.delay_s, other.delay_s)
            and _same(self.jitter_s, other.jitter_s)
            and _same(self.loss, other.loss)
        )


def _same(value: float | None, other: float | None) -> bool:
    if value is None or other is None:
        return value is other
    return abs(value - other) <= SAME * abs(other)


@dataclass(frozen=True, slots=True)
class Trace:
    """Rows in time order, the first at 0. The last row lasts as long as the one before it (1 s if alone).

    At the end `loop` begins again, `hold` keeps the last row, `stop` takes the link down. The replay begins
    `offset_s` into the rows. A trace made of single opportunities to send has them beside its rows, which say what they
    amount to, for the backend that can serve them.
    Raises TraceError when the rows are empty, do not begin at 0, are not in strictly rising time or too many for it,
    or when the offset is not within them.
    """

    rows: tuple[Row, ...]
    end: End = "loop"
    offset_s: float = 0.0
    opportunities: Opportunities | None = None

    def __post_init__(self) -> None:
        if not self.rows:
            raise TraceError("has no rows; write at least one, at time 0", rule="empty")
        if self.rows[0].time_s != 0:
            raise TraceError(
                f"begins at {self.rows[0].time_s:g} s; the first row must be at time 0",
                rule="begin",
                given=self.rows[0].time_s,
            )
        for before, after in pairwise(self.rows):
            if after.time_s <= before.time_s:
                raise TraceError(
                    f"time {after.time_s:g} s comes after {before.time_s:g} s; times must rise from row to row",
                    rule="order",
                    given=after.time_s,
                )
        if len(self.rows) - 1 > self.duration_s * MOST_ROWS_A_SECOND:
            raise TraceError(
                f"has {len(self.rows)} rows in {self.duration_s:g} s, over {MOST_ROWS_A_SECOND} a second; take fewer",
                rule="too-many",
                given=len(self.rows),
            )
        if not 0 <= self.offset_s < self.duration_s:
            raise TraceError(
                f"cannot begin at {self.offset_s:g} s: it ends at {self.duration_s:g} s; begin before",
                field="offset",
                given=self.offset_s,
            )

    @property
    def duration_s(self) -> float:
        """Until the last row's end: the period of a loop."""
        if len(self.rows) == 1:
            return 1.0
        return 2 * self.rows[-1].time_s - self.rows[-2].time_s

    def at(self, time_s: float) -> Row | None:
        """The row in force `time_s` seconds after the replay began; None after the end of one that stops."""
        time_s += self.offset_s
        if time_s >= self.duration_s:
            if self.end == "stop":
                return None
            if self.end == "hold":
                return self.rows[-1]
            time_s = math.fmod(time_s, self.duration_s)
        return self.rows[bisect_right(self.rows, time_s, key=lambda row: row.time_s) - 1]

    @property
    def is_steady(self) -> bool:
        """True if no row changes anything: the link is as the first row says until the trace ends."""
        return all(row.says_as(self.rows[0]) for row in self.rows)

    def changes(self) -> Iterator[tuple[float, Row | None]]:
        """Each moment at which the link changes, in time order; endless for a loop that is not steady.

        Rows that say the same as the row in force are passed over: a packet-delivery file of 1 ms has 2,000 a second.
        """
        in_force = self.at(0.0)
        yield 0.0, in_force
        for time_s, row in self._changes():
            if time_s > self.offset_s and (row is None or in_force is None or not row.says_as(in_force)):
                in_force = row
                yield time_s - self.offset_s, row

    def _changes(self) -> Iterator[tuple[float, Row | None]]:
        """The same, of a replay from the first row on."""
        yield from ((row.time_s, row) for row in self.rows)
        if self.end == "stop":
            yield self.duration_s, None
        if self.end == "loop" and not self.is_steady:
            for lap in count(1):
                yield from ((lap * self.duration_s + row.time_s, row) for row in self.rows)

    def scaled(self, factor: float) -> Trace:
        """The same trace with its rates multiplied. TraceError when a link could not have one of them."""
        if factor == 1:
            return self
        rows = (row if row.rate_bps is None else replace(row, rate_bps=row.rate_bps * factor) for row in self.rows)
        opportunities = self.opportunities and self.opportunities.scaled(factor)
        return replace(self, rows=with_possible_rates(rows), opportunities=opportunities)

    def delivery(self, began_s: float) -> Delivery | None:
        """The opportunities as they are replayed when `began_s` on the monotonic clock is the replay's begin."""
        if self.opportunities is None:
            return None
        return Delivery(self.opportunities, began_s - self.offset_s, self.end)

    def begun(self, offset_s: float) -> Trace:
        """The same trace, replayed from `offset_s` on; a loop takes one past its end. TraceError for others."""
        if offset_s == self.offset_s:
            return self
        return replace(self, offset_s=math.fmod(offset_s, self.duration_s) if self.end == "loop" else offset_s)


def with_possible_rates(rows: Iterable[Row]) -> tuple[Row, ...]:
    """These rows. TraceError when a link could not have the rate of one."""
    rows = tuple(rows)
    for row in rows:
        if row.rate_bps is not None and not LEAST_RATE_BPS <= row.rate_bps <= MOST_RATE_BPS:
            raise TraceError(
                f"has {row.rate_bps:g} bit/s at {row.time_s:g} s; a link has {LEAST_RATE_BPS:g} to {MOST_RATE_BPS:g}, "
                "and one that carries nothing a loss of 100 %",
                rule="range",
                field="rate",
                given=row.rate_bps,
            )
    return rows


def lasting(rows: Sequence[Row], until_s: float) -> tuple[Row, ...]:
    """The rows such that a trace of them ends at `until_s`, after the last one's time.

    The last row of a trace lasts as long as the one before it; where that is another end, the last row is said
    again halfway to the end.
    """
    last = rows[-1]
    if len(rows) > 1 and math.isclose(2 * last.time_s - rows[-2].time_s, until_s, rel_tol=1e-12):
        return tuple(rows)
    return (*rows, replace(last, time_s=(last.time_s + until_s) / 2))
