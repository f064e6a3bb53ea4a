"""Deliveries as a trace of rates, a row a step, and how far that is from what was delivered.

A step's rate is what was delivered in it over its length, so the sum over the whole is exact: no drift. Two things
are not as they were: within a step the packets come evenly, and no step has less than `LEAST_BPS`. What an outage is
lent is taken from the steps that follow, so the sum stays. With 1,514-byte frames and steps of 100 ms: an outage of
one second is lent 5 frames, and the 100 frames of the step after it become 95.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from testbed.trace.trace import Row, Trace, TraceError, lasting
from testbed.trace.volume import Delivered, Volume

#: The least rate of any link: a full frame takes 0.19 s. HTB charges a packet at the rate at which it leaves, so one
#: that left at an outage's frame a minute would hold up those behind it long after the outage.
LEAST_BPS = 64e3

#: What CSV takes too, and past any host.
MOST_BPS = 100e9

#: Packet-delivery files tell no shorter times.
LEAST_STEP_S = 0.001

#: Eleven days of seconds, and more than anyone replays; a slip in a file or a step must not take all memory.
MOST_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class Resampled:
    """A trace made of what was delivered, in steps of `step_s`."""

    trace: Trace
    step_s: float
    source: Delivered

    def error(self, window_s: float) -> float:
        """Mean relative error of the bytes delivered per window: the sum of |replayed - delivered| over windows of
        this length, over the sum delivered. 0.02 is 2 % of a mean window's bytes, in the mean."""
        edges = _edges(self.source.duration_s, window_s)
        replayed, delivered = (_between(each, edges) for each in (Volume.of_trace(self.trace), self.source))
        return sum(abs(a - b) for a, b in zip(replayed, delivered, strict=True)) / sum(delivered)

    @property
    def drift(self) -> float:
        """By how much the replay delivers more over the whole, relative to what was delivered."""
        delivered = self.source.by(self.source.duration_s)
        return Volume.of_trace(self.trace).total[-1] / delivered - 1


def resample(source: Delivered, step_s: float) -> Resampled:
    """The source as a trace with a row each `step_s` seconds; the last row is of half a step to one and a half.

    Raises TraceError for a step below 1 ms or one that makes too many rows, and as `rates_between` does.
    """
    _require_a_mean(source)  # said first: no step mends it
    edges = _edges(source.duration_s, step_s)
    rows = [Row(start, rate) for start, rate in zip(edges, rates_between(source, edges), strict=False)]
    return Resampled(Trace(lasting(rows, source.duration_s)), step_s, source)


def rates_between(source: Delivered, edges: Sequence[float]) -> list[float]:
    """The rate in bit/s from each edge, a moment of the source's time, to the next; none is below 64 kbit/s.

    Raises TraceError for a source that carries less than 64 kbit/s in the mean or more than 100 Gbit/s in a step.
    """
    _require_a_mean(source)
    lengths = [stop - start for start, stop in pairwise(edges)]
    carried = _lent(_between(source, edges), [LEAST_BPS / 8 * length for length in lengths])
    rates = [bytes_ * 8 / length for bytes_, length in zip(carried, lengths, strict=True)]
    if (most := max(rates)) > MOST_BPS:
        raise TraceError(
            f"carries {most / 1e9:.3g} Gbit/s in a step; a link carries {MOST_BPS / 1e9:g} at most",
            rule="rate-above",
            given=most,
        )
    return rates


def _require_a_mean(source: Delivered) -> None:
    mean_bps = source.by(source.duration_s) * 8 / source.duration_s
    if mean_bps < LEAST_BPS:
        raise TraceError(
            f"carries {mean_bps / 1e3:.3g} kbit/s in the mean; a link carries {LEAST_BPS / 1e3:g} kbit/s or more",
            rule="rate-below",
            given=mean_bps,
        )


def _edges(duration_s: float, step_s: float) -> list[float]:
    """The bounds of the steps. A remainder below half a step lengthens the last one."""
    if not step_s >= LEAST_STEP_S:
        raise TraceError(
            f"a step of {step_s:g} s is too short; take {LEAST_STEP_S:g} s or more",
            rule="step-short",
            field="step",
            given=step_s,
        )
    steps = max(round(duration_s / step_s), 1)
    if steps > MOST_ROWS:
        raise TraceError(
            f"has {duration_s:g} s, in steps of {step_s:g} s over {MOST_ROWS} rows; take a longer step",
            rule="step-many",
            field="step",
            given=step_s,
        )
    return [*(round(i * step_s, 9) for i in range(steps)), duration_s]


def _between(source: Delivered, edges: Sequence[float]) -> list[float]:
    return [after - before for before, after in pairwise([source.by(edge) for edge in edges])]


def _lent(delivered: list[float], least: list[float]) -> list[float]:
    """Each step with its least, lent by those that follow; the first follow the last, as in a loop."""
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
