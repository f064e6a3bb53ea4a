"""Another host's clock, as timed probes tell: how far it is ahead of ours, and how fast that changes. Pure.

    ours    sent ------------------------- came
    theirs        received -- answered

The offset is ((received − sent) + (answered − came)) / 2 (RFC 5905, section 8). It is wrong by at most half of the
round trip, and by as much where the way takes all its time in one direction. So of each stretch of time the sample
with the least round trip is believed. Drift is the slope of a line through those, with a least-squares fit's error.

Durations go by clocks that nobody sets (CLOCK_MONOTONIC), which begin anywhere: an offset of hours between those means
nothing. What hosts say of the time of day goes by their wall clocks, which are to agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import copysign, sqrt

#: Of so long a stretch the sample with the least round trip is believed: one of some twenty is seldom held up.
STRETCH_S = 2.0
#: A line needs more points than two to say how well it fits.
LEAST_STRETCHES = 4


@dataclass(frozen=True, slots=True)
class ClockSample:
    """One probe and its answer, in seconds: `sent` and `came` on our monotonic clock, `received` and `answered` on
    theirs. `wall_ahead` is how far their wall clock is ahead of their monotonic one, less what ours is."""

    sent: float
    received: float
    answered: float
    came: float
    wall_ahead: float = 0.0

    @property
    def round_trip_s(self) -> float:
        """On the way, there and back."""
        return (self.came - self.sent) - (self.answered - self.received)

    @property
    def offset_s(self) -> float:
        """How far their monotonic clock is ahead of ours."""
        return ((self.received - self.sent) + (self.answered - self.came)) / 2

    @property
    def wall_offset_s(self) -> float:
        """How far their wall clock is ahead of ours."""
        return self.offset_s + self.wall_ahead


@dataclass(frozen=True, slots=True)
class ClockEstimate:
    """What is known of a host's clock.

    `offset_s` is of monotonic clocks when `at_s` was ours, and is off by `offset_bound_s` at most; `bound_s` is the
    most that it was off at any time. `wall_offset_s` is by how much wall clocks were apart for certain, at the worst:
    what a sample says, less what it may be off. `drift` is relative, None while too little was seen, give or take
    `drift_error` (one standard error). `span_s` is the time over which it was seen.
    """

    at_s: float
    offset_s: float
    offset_bound_s: float
    wall_offset_s: float
    bound_s: float
    drift: float | None
    drift_error: float
    span_s: float

    def theirs(self, ours_s: float) -> float:
        """What their monotonic clock says when ours says this."""
        return ours_s + self.offset_s + (self.drift or 0.0) * (ours_s - self.at_s)

    def ours(self, theirs_s: float) -> float:
        """What ours says when theirs says this."""
        drift = self.drift or 0.0
        return self.at_s + (theirs_s - self.at_s - self.offset_s) / (1 + drift)


def estimate(samples: Iterable[ClockSample]) -> ClockEstimate:
    """What samples tell of a clock. ValueError where there is none."""
    best = best_of_stretches(samples)
    if not best:
        raise ValueError("no sample, so nothing is known of the clock")
    last, drift, error = best[-1], None, 0.0
    if len(best) >= LEAST_STRETCHES:
        drift, error = _slope([one.came for one in best], [one.offset_s for one in best])
    return ClockEstimate(
        at_s=last.came,
        offset_s=last.offset_s,
        offset_bound_s=last.round_trip_s / 2,
        wall_offset_s=max((certain(one.wall_offset_s, one.round_trip_s / 2) for one in best), key=abs),
        bound_s=max(one.round_trip_s for one in best) / 2,
        drift=drift,
        drift_error=error,
        span_s=last.came - best[0].came,
    )


def certain(value: float, bound: float) -> float:
    """What of a value is beyond doubt, where it is off by a bound at most."""
    return copysign(max(abs(value) - bound, 0.0), value)


def best_of_stretches(samples: Iterable[ClockSample], stretch_s: float = STRETCH_S) -> list[ClockSample]:
    """The sample with the least round trip in each stretch of time, in order."""
    best: dict[int, ClockSample] = {}
    for one in samples:
        stretch = int(one.came // stretch_s)
        if stretch not in best or one.round_trip_s < best[stretch].round_trip_s:
            best[stretch] = one
    return [best[stretch] for stretch in sorted(best)]


def _slope(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Of the least-squares line, and its standard error."""
    count = len(xs)
    x, y = sum(xs) / count, sum(ys) / count
    spread = sum((one - x) ** 2 for one in xs)
    slope = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / spread
    left = sum((b - y - slope * (a - x)) ** 2 for a, b in zip(xs, ys, strict=True))
    return slope, sqrt(left / (count - 2) / spread)
