"""A trace: rows of a link's rate, delay, jitter and loss, each in force until the next."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count, pairwise
from pathlib import Path
from typing import Literal, Self

from testbed.errors import BAD_INPUT, DetailedError
from testbed.link import Delivery, LinkState, Opportunities

#: The event after the last row: the trace begins again, the row stays, or the link goes down.
End = Literal["loop", "hold", "stop"]

#: At this rate a full frame takes twelve seconds. The kernel counts rates in whole bytes a second.
LEAST_RATE_BPS = 1e3
#: No host forwards more.
MOST_RATE_BPS = 100e9

#: The most rows a second, in the mean: one a millisecond, and two in the last step of a resampled trace. A loop of two
#: rows within a microsecond would leave the replay no time for anything else.
MOST_ROWS_A_SECOND = 2000

#: The relative difference below which two values are the same: equal rates of steps, computed from sums of bytes,
#: differ in their last digits.
SAME = 1e-9
#: The relative difference below which two moments are the same: sums of steps differ in their last digits.
ROUNDING = 1e-12


class TraceError(DetailedError, ValueError):
    """A trace that cannot be read or replayed. The text names the broken rule and says what to write instead."""

    exit_code = BAD_INPUT

    def at_line(self, number: int, kind: str = "line") -> Self:
        """Return this error with its line, from 1, in the text and in `line`. `kind` is the word before the number."""
        return self.located(f"{kind} {number}", line=number)


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Name the file in each TraceError that the body raises, unless the error names a file already."""
    try:
        yield
    except TraceError as error:
        raise error if error.file else error.located(path, file=path) from None


@dataclass(frozen=True, slots=True)
class Row:
    """The values of a link from `time_s` until the next row; None leaves the link's own value."""

    time_s: float
    #: In bit/s.
    rate_bps: float | None = None
    #: One way.
    delay_s: float | None = None
    jitter_s: float | None = None
    #: A probability in [0, 1].
    loss: float | None = None

    def over(self, state: LinkState) -> LinkState:
        """Return the link's state with this row in force.

        Note:
            `dataclasses.replace` takes 4 µs, and 500 links may be due at once, so the fields are written out.
        """
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
    """Rows in time order, the first at 0. The last row lasts as long as the row before it (1 s if it is alone).

    Raises:
        TraceError: There are no rows, the first is not at 0, their times do not rise strictly, they are too many for
            their time, or `offset_s` is not within them.
    """

    rows: tuple[Row, ...]
    end: End = "loop"
    #: The time in the rows at which the replay begins.
    offset_s: float = 0.0
    #: The single opportunities to send that the rows sum up, for a backend that can serve them one by one.
    opportunities: Opportunities | None = None

    def __post_init__(self) -> None:
        if not self.rows:
            raise TraceError("the trace has no rows; write at least one, at time 0", rule="empty")
        if self.rows[0].time_s != 0:
            text = f"the first row is at {self.rows[0].time_s:g} s; begin at time 0"
            raise TraceError(text, rule="begin", given=self.rows[0].time_s)
        for before, after in pairwise(self.rows):
            if after.time_s <= before.time_s:
                text = (
                    f"the row at {after.time_s:g} s follows that at {before.time_s:g} s; sort the rows, each time once"
                )
                raise TraceError(text, rule="order", given=after.time_s)
        if len(self.rows) - 1 > self.duration_s * MOST_ROWS_A_SECOND:
            text = f"{len(self.rows)} rows in {self.duration_s:g} s are over {MOST_ROWS_A_SECOND} a second; write fewer"
            raise TraceError(text, rule="too-many", given=len(self.rows))
        if not 0 <= self.offset_s < self.duration_s:
            text = (
                f"the offset {self.offset_s:g} s is not within the trace; write from 0 to below {self.duration_s:g} s"
            )
            raise TraceError(text, field="offset", given=self.offset_s)

    @property
    def duration_s(self) -> float:
        """The time from 0 to the end of the last row, which is the period of a loop."""
        if len(self.rows) == 1:
            return 1.0
        return 2 * self.rows[-1].time_s - self.rows[-2].time_s

    def at(self, time_s: float) -> Row | None:
        """Return the row in force `time_s` seconds after the replay began.

        After the end it is the last row (`hold`), a row of the next lap (`loop`), or None (`stop`).
        """
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
        """True if all rows say the same, so that the link does not change until the trace ends."""
        return all(row.says_as(self.rows[0]) for row in self.rows)

    def changes(self) -> Iterator[tuple[float, Row | None]]:
        """Yield each moment at which the link changes, with the row from then on (None: the link is down).

        The moments rise, in seconds since the replay began; a loop that is not steady has no end. Rows that say the
        same as the row in force are passed over: a packet-delivery file of 1 ms has 2,000 a second.
        """
        in_force = self.at(0.0)
        yield 0.0, in_force
        for time_s, row in self._changes():
            if time_s > self.offset_s and (row is None or in_force is None or not row.says_as(in_force)):
                in_force = row
                yield time_s - self.offset_s, row

    def _changes(self) -> Iterator[tuple[float, Row | None]]:
        """Yield each row with its time, in a replay that begins with the first row."""
        yield from ((row.time_s, row) for row in self.rows)
        if self.end == "stop":
            yield self.duration_s, None
        if self.end == "loop" and not self.is_steady:
            for lap in count(1):
                yield from ((lap * self.duration_s + row.time_s, row) for row in self.rows)

    def scaled(self, factor: float) -> Trace:
        """Return the trace with its rates multiplied. Raises TraceError where a link cannot have one of these rates."""
        if factor == 1:
            return self
        rows = (row if row.rate_bps is None else replace(row, rate_bps=row.rate_bps * factor) for row in self.rows)
        opportunities = self.opportunities and self.opportunities.scaled(factor)
        return replace(self, rows=with_possible_rates(rows), opportunities=opportunities)

    def delivery(self, began_s: float) -> Delivery | None:
        """Return the opportunities, replayed from `began_s` (monotonic clock) on; None for a trace without them."""
        if self.opportunities is None:
            return None
        return Delivery(self.opportunities, began_s - self.offset_s, self.end)

    def begun(self, offset_s: float) -> Trace:
        """Return the trace as replayed from `offset_s` on. Raises TraceError past the end of a trace without a loop."""
        if offset_s == self.offset_s:
            return self
        return replace(self, offset_s=math.fmod(offset_s, self.duration_s) if self.end == "loop" else offset_s)


def with_possible_rates(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return the rows as a tuple. Raises TraceError where a link cannot have the rate of a row."""
    rows = tuple(rows)
    for row in rows:
        if row.rate_bps is not None and not LEAST_RATE_BPS <= row.rate_bps <= MOST_RATE_BPS:
            raise TraceError(
                f"the rate at {row.time_s:g} s is {row.rate_bps:g} bit/s; write {LEAST_RATE_BPS:g} to "
                f"{MOST_RATE_BPS:g}, or a loss of 100 % where the link carries nothing",
                rule="range",
                field="rate",
                given=row.rate_bps,
            )
    return rows


def lasting(rows: Sequence[Row], until_s: float) -> tuple[Row, ...]:
    """Return the rows such that a trace of them ends at `until_s`.

    The last row of a trace lasts as long as the row before it. Where it would end at another time, the last row is
    repeated halfway to `until_s`. A last row that begins at `until_s`, but for rounding, is left out.
    """
    while len(rows) > 1 and math.isclose(rows[-1].time_s, until_s, rel_tol=ROUNDING):
        rows = rows[:-1]
    last = rows[-1]
    if len(rows) > 1 and math.isclose(2 * last.time_s - rows[-2].time_s, until_s, rel_tol=ROUNDING):
        return tuple(rows)
    return (*rows, replace(last, time_s=(last.time_s + until_s) / 2))
