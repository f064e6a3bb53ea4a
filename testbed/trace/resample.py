"""Deliveries as a trace of rates, one row a step, and the error of that trace.

The rate of a step is what was delivered in the step over its length, so the sum over the whole is exact: no drift. Two
things differ from what was delivered: within a step the packets come evenly, and no step has less than `LEAST_BPS`.
An outage borrows its bytes from the steps that follow, so the sum stays. With 1,514-byte frames and steps of 100 ms, an
outage of one second borrows 5 frames, and the 100 frames of the step after it become 95.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Protocol

from testbed.trace.trace import MOST_RATE_BPS, Row, Trace, TraceError, lasting

#: The least rate of any link: a full frame takes 0.19 s. HTB charges a packet at the rate at which it leaves, so a
#: packet that left at a frame a minute in an outage would hold up the packets behind it long after the outage.
LEAST_BPS = 64e3

#: The shortest step: packet-delivery files count milliseconds.
LEAST_STEP_S = 0.001

#: Eleven days of seconds, and more than anyone replays; a slip in a file or a step must not take all memory.
MOST_ROWS = 1_000_000


class Delivered(Protocol):
    """Anything that knows how many bytes of frames a link had delivered by a moment, from 0 to `duration_s`."""

    @property
    def duration_s(self) -> float:
        """The seconds over which bytes were delivered."""

    def by(self, time_s: float) -> float:
        """Return the bytes of frames delivered before `time_s`."""


@dataclass(frozen=True, slots=True)
class Volume:
    """A running total of bytes: `total[i]` bytes of frames by `edges_s[i]`, delivered evenly in between.

    Both tuples begin at 0 and have the same length; edges rise.
    """

    edges_s: tuple[float, ...]
    total: tuple[float, ...]

    @classmethod
    def of_steps(cls, edges_s: Iterable[float], bytes_: Iterable[float]) -> Volume:
        """Return the volume of the bytes delivered between edges; there is one edge more than steps."""
        return cls(tuple(edges_s), (0.0, *accumulate(bytes_)))

    @classmethod
    def of_trace(cls, trace: Trace) -> Volume:
        """Return the bytes that one lap of a trace carries; a row that loses all packets carries none.

        Raises TraceError where a row has no rate.
        """
        edges = [*(row.time_s for row in trace.rows), trace.duration_s]
        carried = []
        for row, (start, stop) in zip(trace.rows, pairwise(edges), strict=True):
            if row.rate_bps is None:
                text = f"the row at {row.time_s:g} s has no rate; give each row a rate_mbps"
                raise TraceError(text, rule="no-rate", given=row.time_s)
            carried.append(0.0 if row.loss == 1 else row.rate_bps / 8 * (stop - start))
        return cls.of_steps(edges, carried)

    @property
    def duration_s(self) -> float:
        """The time of the last edge, in seconds from 0."""
        return self.edges_s[-1]

    def by(self, time_s: float) -> float:
        """Return the bytes of frames delivered before `time_s`."""
        if time_s >= self.duration_s:
            return self.total[-1]
        i = bisect_right(self.edges_s, time_s) - 1
        share = (time_s - self.edges_s[i]) / (self.edges_s[i + 1] - self.edges_s[i])
        return self.total[i] + share * (self.total[i + 1] - self.total[i])


@dataclass(frozen=True, slots=True)
class Resampled:
    """A trace in steps of `step_s`, and the deliveries that it was made of."""

    trace: Trace
    step_s: float
    source: Delivered

    def error(self, window_s: float) -> float:
        """Return the errors of the bytes delivered in windows of this length, summed, over all bytes delivered.

        The error is the sum of |replayed - delivered| over all windows, over the sum delivered: 0.02 is 2 % of a mean
        window's bytes, in the mean.
        """
        edges = _edges(self.source.duration_s, window_s)
        replayed, delivered = (_between(each, edges) for each in (Volume.of_trace(self.trace), self.source))
        return sum(abs(a - b) for a, b in zip(replayed, delivered, strict=True)) / sum(delivered)

    @property
    def drift(self) -> float:
        """The bytes that a whole replay delivers too many, relative to the bytes delivered."""
        delivered = self.source.by(self.source.duration_s)
        return Volume.of_trace(self.trace).total[-1] / delivered - 1


def resample(source: Delivered, step_s: float) -> Resampled:
    """Return the rates of a source as a trace with a row each `step_s` seconds; the last row lasts 0.5 to 1.5 steps.

    Raises TraceError where the step is below 1 ms, it makes too many rows, or as `rates_between` does.
    """
    _require_a_mean(source)  # before the step is looked at: another step would not help
    edges = _edges(source.duration_s, step_s)
    rows = [Row(start, rate) for start, rate in zip(edges, rates_between(source, edges), strict=False)]
    return Resampled(Trace(lasting(rows, source.duration_s)), step_s, source)


def rates_between(source: Delivered, edges: Sequence[float]) -> list[float]:
    """Return the rate in bit/s from each edge, a moment of the source's time, to the next; none is below 64 kbit/s.

    Raises TraceError where the source carries less than 64 kbit/s in the mean, or more than 100 Gbit/s in a step.
    """
    _require_a_mean(source)
    lengths = [stop - start for start, stop in pairwise(edges)]
    carried = _lent(_between(source, edges), [LEAST_BPS / 8 * length for length in lengths])
    rates = [bytes_ * 8 / length for bytes_, length in zip(carried, lengths, strict=True)]
    if (most := max(rates)) > MOST_RATE_BPS:
        text = f"a step has {most / 1e9:.3g} Gbit/s; a link carries {MOST_RATE_BPS / 1e9:g} Gbit/s at most"
        raise TraceError(text, rule="rate-above", given=most)
    return rates


def _require_a_mean(source: Delivered) -> None:
    mean_bps = source.by(source.duration_s) * 8 / source.duration_s
    if mean_bps < LEAST_BPS:
        text = f"the mean rate is {mean_bps / 1e3:.3g} kbit/s; a link carries {LEAST_BPS / 1e3:g} kbit/s or more"
        raise TraceError(text, rule="rate-below", given=mean_bps)


def _edges(duration_s: float, step_s: float) -> list[float]:
    """Return the bounds of the steps. A remainder below half a step lengthens the last one."""
    if not step_s >= LEAST_STEP_S:
        text = f"a step of {step_s:g} s is too short; take {LEAST_STEP_S:g} s or more"
        raise TraceError(text, rule="step-short", field="step", given=step_s)
    steps = max(round(duration_s / step_s), 1)
    if steps > MOST_ROWS:
        text = f"{duration_s:g} s in steps of {step_s:g} s are over {MOST_ROWS} rows; take a longer step"
        raise TraceError(text, rule="step-many", field="step", given=step_s)
    return [*(round(i * step_s, 9) for i in range(steps)), duration_s]


def _between(source: Delivered, edges: Sequence[float]) -> list[float]:
    return [after - before for before, after in pairwise([source.by(edge) for edge in edges])]


def _lent(delivered: list[float], least: list[float]) -> list[float]:
    """Return the steps' bytes, with each step raised to its least. The steps after it, in a loop, give up that much."""
    carried, debt = [max(each, low) for each, low in zip(delivered, least, strict=True)], 0.0
    for lap in range(2):
        for i, low in enumerate(least):
            if lap == 0 and delivered[i] < low:
                debt += low - delivered[i]
            elif debt > 0:
                paid = min(debt, carried[i] - low)
                carried[i] -= paid
                debt -= paid
    return carried
