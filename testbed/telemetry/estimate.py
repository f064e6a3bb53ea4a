"""The estimate of what a link carries, from samples of it: a belief over rates that each sample sharpens.

    samples          o  o o  o   o  .  o o      o  a few percent off, .  held up on its way, or by a late stamp
    belief     ______|_______|______|_______    where the link's rate may lie, as a distribution over rates
    between samples  it flattens: the rate may wander, and now and then it becomes another one

A train over a full link lies within some percent of the link's rate, or below it by any factor, where a host, TCP or
another train held it up, or seldom above it. Slow trains that agree with each other say that the link fell; slow trains
that do not agree say nothing. A train that did not fill the link says what the link carries at least.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, hypot, inf, log, pi, sqrt
from statistics import median

import numpy as np
from numpy.typing import NDArray

from testbed.telemetry.sample import Sample

Floats = NDArray[np.float64]

#: The rates of a belief are so far apart (logarithm), from 10 kbit/s to 1 Tbit/s.
STEP = 0.02
_RATES = np.arange(log(1e4), log(1e12), STEP)

#: Fewer trains say nothing: a late stamp made one of 190 Mbit/s over a link of 20.
LEAST = 3
#: Trains that are kept, the newest.
WINDOW = 25
#: Trains over a full link lie around its rate, most of them within CLOSE (standard deviation of the logarithm), some
#: within WIDE: a share of them, and how far. Trains of 64 to 256 KiB are 0.8 % off at the median and 2.7 % at the 90th
#: percentile.
CLOSE, WIDE = (0.65, 0.02), (0.10, 0.07)
#: A share of them lie below it, the fewer the further: packets that were counted over a link that had just fallen came
#: at 4.2 to 4.8 of 5 Mbit/s. Without this a link was believed at 24 for 28 s after it had fallen to 5.
BELOW = (0.20, 0.15)
#: A train's time is off by so much in either direction: 12 packets take 5 ms over 26 Mbit/s, and lie within 5 %.
JITTER_S = 0.00025
#: How often a full link shows a rate far below its own, and far above it: densities over the logarithm. Of trains that
#: met a full link 2 % came below two thirds of its rate on the quickstart and 0.3 % a tenth above it; 41 % and 4 % on a
#: host with two processors and a load of 27.
FAR_BELOW, FAR_ABOVE = 0.07, 0.02
#: How much less likely a link carries less than a train that passed it: one that lasted LASTED_S, and a shorter one.
EXCEEDED, EXCEEDED_SHORTLY = 1 / 40, 1 / 6
LASTED_S = 0.05
#: Stamps may be so much late, which a short train looks faster by: three of 20 ms over a link of 200 Mbit/s came at 212
#: to 214, and each time it was probed for that, in the midst of a round, which took 8 % longer.
LATE_S = 0.003
#: In a second a rate becomes another one with this probability, up to FAR times more or less: rates are drawn anew
#: every 20 s, or fall for 30.
JUMPS, FAR = 0.05, 30.0
_JUMP = round(log(FAR) / STEP)
#: A belief is sure where MOSTLY of it lies within AGREES of one rate, at which SURE trains came; where PERHAPS so much
#: does it is not, and goes by that rate all the same.
MOSTLY, PERHAPS, AGREES, SURE = 0.8, 0.5, 0.10, 2
#: The trains that move a belief to another rate lie so far apart at most.
MOVES_S = 3.0
#: So many of the newest trains that agree make the rate.
NEWEST = 5

#: The interval lies at least this part to either side of the estimate: clocks, framing, what is lost on the way, and a
#: rate that goes on changing. Of 29,000 estimates of links that no LTE trace moved, 6 % held 93.5 %, 10 % hold 95.2 %.
LEAST_SPREAD = 0.10
#: A link that was never full may carry so many times as much as it did.
OPEN = 4.0

#: An interval that holds 95 % reaches over so many standard deviations to either side.
TWO_SIDED = 1.96
#: Rates wander: how far in a second (standard deviation of the logarithm), growing with the root of the time.
DRIFT = 0.03
#: What is not known at all is in no more doubt than this: about a third more or less.
UNKNOWN_DOUBT = 0.3

#: Seconds without a train after which a capacity is unknown. Confidence halves in as long.
SILENCE_S = 10.0
#: The age of what no train filled.
UNSURE_S = SILENCE_S + 1.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bit/s of frames: the likeliest rate, and between which two it lies; the seconds since the newest train behind it,
    and over how long those were spread."""

    rate_bps: float
    low_bps: float
    high_bps: float
    age_s: float
    over_s: float

    @property
    def known(self) -> bool:
        """Whether it is recent enough to go by."""
        return self.age_s <= SILENCE_S

    @property
    def confidence(self) -> float:
        """In (0, 1]: halves every SILENCE_S."""
        return float(0.5 ** (self.age_s / SILENCE_S))

    def doubt(self) -> tuple[float, float]:
        """How far below and above the estimate the link may be by now: standard deviations of the logarithm."""
        drift = DRIFT * self.age_s**0.5
        below, above = log(self.rate_bps / self.low_bps) / TWO_SIDED, log(self.high_bps / self.rate_bps) / TWO_SIDED
        return min(below + drift, UNKNOWN_DOUBT), min(above + drift, UNKNOWN_DOUBT)

    def to_json(self) -> dict[str, float]:
        """Plain values for JSON."""
        return {
            "rate_bps": round(self.rate_bps),
            "low_bps": round(self.low_bps),
            "high_bps": round(self.high_bps),
            "age_s": round(self.age_s, 3),
            "over_s": round(self.over_s, 3),
            "confidence": round(self.confidence, 3),
        }


class Belief:
    """The probability of each rate of a link, given the samples until now."""

    def __init__(self) -> None:
        self._mass = np.full(len(_RATES), 1 / len(_RATES))
        self._spread = 0.0  # variance of the logarithm that the mass has still to be spread by
        self._at_s: float | None = None

    def add(self, sample: Sample) -> None:
        """Take one more sample, later than those before it, or about as late."""
        if self._at_s is not None:
            self._age(max(sample.ended_s - self._at_s, 0.0))
        self._at_s = max(sample.ended_s, self._at_s or 0.0)
        self._mass *= _of_full(sample) if sample.full else _of_passing(sample)
        self._mass /= self._mass.sum()

    def _age(self, seconds: float) -> None:
        self._spread += DRIFT**2 * seconds
        sigma = self._spread**0.5 / STEP
        if sigma > 0.5:
            reach = min(int(3 * sigma) + 1, (len(_RATES) - 1) // 2)  # `convolve` returns the longer one's length
            kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
            self._mass = np.convolve(self._mass, kernel / kernel.sum(), mode="same")
            self._spread = 0.0
        self._mass /= self._mass.sum()
        jumped = 1 - exp(-JUMPS * seconds)
        self._mass = (1 - jumped) * self._mass + jumped * self._near(_JUMP) / (2 * _JUMP + 1)

    def _near(self, reach: int) -> Floats:
        """Return how much of the belief lies no further than `reach` steps from each rate."""
        sums = np.concatenate([np.zeros(reach + 1), np.cumsum(self._mass), np.full(reach, self._mass.sum())])
        found: Floats = sums[2 * reach + 1 :] - sums[: -2 * reach - 1]
        return found

    def likeliest(self) -> tuple[float, float]:
        """Return the logarithm of the rate that most of the belief lies near, and how much does."""
        reach = round(AGREES / STEP)
        near = self._near(reach)
        best = int(near.argmax())
        around = slice(max(best - reach, 0), best + reach + 1)
        return float((_RATES[around] * self._mass[around]).sum() / self._mass[around].sum()), float(near[best])

    def quantile(self, part: float) -> float:
        """Return the logarithm of the rate that this part of the belief does not lie above."""
        return float(_RATES[min(int(np.searchsorted(np.cumsum(self._mass), part)), len(_RATES) - 1)])


def _of_full(sample: Sample) -> Floats:
    """Return how likely a train over a full link is, by the link's rate."""
    found = np.full(len(_RATES), FAR_ABOVE)
    rate = log(sample.rate_bps)
    middle = (rate - _RATES[0]) / STEP
    above = slice(max(ceil(middle), 0), None)
    share, scale = BELOW
    found[above] = FAR_BELOW + share / scale * np.exp((rate - _RATES[above]) / scale)
    jitter = JITTER_S / sample.seconds
    reach = ceil(3 * hypot(WIDE[1], jitter) / STEP)
    around = slice(max(int(middle) - reach, 0), max(int(middle) + reach + 1, 0))
    off = _RATES[around] - rate
    for part, sigma in (CLOSE, WIDE):
        sigma = hypot(sigma, jitter)
        found[around] += part / sigma / sqrt(2 * pi) * np.exp(-0.5 * (off / sigma) ** 2)
    return found


def _of_passing(sample: Sample) -> Floats:
    """Return how likely a train that did not fill a link is, by the link's rate."""
    found = np.ones(len(_RATES))
    lasted = sample.seconds >= LASTED_S
    found[: max(ceil((_least(sample) - _RATES[0]) / STEP), 0)] = EXCEEDED if lasted else EXCEEDED_SHORTLY
    return found


class RateEstimator:
    """The estimate of one link, of which `declared_bps` is believed before anything was measured."""

    def __init__(self, declared_bps: float) -> None:
        self._belief = Belief()
        self._full: deque[Sample] = deque(maxlen=WINDOW)
        self._passed: deque[Sample] = deque(maxlen=WINDOW)
        self._count = 0  # of those that filled the link
        self._rate_bps = declared_bps
        self._moved_s = -inf  # samples before that are of another rate
        self._newest: tuple[Estimate, float] | None = None  # as of the end of the newest train behind it, and when

    def add(self, samples: Sequence[Sample]) -> None:
        """Take what was seen since the last time."""
        for sample in sorted(samples, key=lambda sample: sample.ended_s):
            self._belief.add(sample)
            (self._full if sample.full else self._passed).append(sample)
            self._count += sample.full
        # Here, since a controller asks for the estimate some fifteen times a round, in which only its age changes. What
        # is slower and did not fill the link changes nothing but that.
        if any(sample.full or _least(sample) > log(self._rate_bps) for sample in samples):
            self._newest = self._of_belief(max(sample.ended_s for sample in samples))

    @property
    def newest_bps(self) -> float:
        """What the newest train that filled the link came at; infinite before one did."""
        return self._full[-1].rate_bps if self._full else inf

    def estimate(self, now_s: float) -> Estimate | None:
        """The estimate as of `now_s` (Unix time); None before anything was measured, or carried beyond belief."""
        if self._newest is None:
            return None
        estimate, ended_s = self._newest
        return replace(estimate, age_s=estimate.age_s + max(now_s - ended_s, 0.0))

    def _of_belief(self, ended_s: float) -> tuple[Estimate, float] | None:
        likeliest, mass = self._belief.likeliest()
        low_bps, high_bps = exp(self._belief.quantile(0.025)), exp(self._belief.quantile(0.975))
        agreeing = self._agreeing(likeliest) if self._count >= LEAST and mass >= PERHAPS else []
        if agreeing:
            newest = agreeing[0]
            older = (its for its in agreeing[1:NEWEST] if newest.ended_s - its.began_s <= SILENCE_S)
            behind = [newest, *older]
            self._rate_bps = rate = median(its.rate_bps for its in behind)
            if mass >= MOSTLY and len(agreeing) >= SURE:
                low, high = min(low_bps, rate * (1 - LEAST_SPREAD)), max(high_bps, rate * (1 + LEAST_SPREAD))
                return Estimate(rate, low, high, 0.0, newest.ended_s - behind[-1].began_s), newest.ended_s
        elif above := self._above(ended_s):
            self._rate_bps = above
        elif self._newest is None:
            return None
        rate = self._rate_bps
        return Estimate(rate, min(low_bps, rate), max(min(high_bps, OPEN * rate), rate), UNSURE_S, 0.0), ended_s

    def _above(self, ended_s: float) -> float | None:
        """Return what the link carries at least where that is more than it was said to: trains passed it so fast."""
        if self._belief.quantile(0.5) <= log(self._rate_bps):
            return None
        recent = [sample for sample in self._passed if ended_s - sample.ended_s <= SILENCE_S]
        above = [sample for sample in recent if _least(sample) > log(self._rate_bps)]
        lasted = [sample.rate_bps for sample in above if sample.seconds >= LASTED_S]
        if lasted:
            return max(lasted)
        return median(sample.rate_bps for sample in above) if above else None

    def _agreeing(self, likeliest: float) -> list[Sample]:
        """Return the trains that came at about this rate (logarithm) since the link has it, the newest first."""
        found = [its for its in reversed(self._full) if abs(log(its.rate_bps) - likeliest) <= AGREES]
        if found and abs(log(self._rate_bps) - likeliest) > AGREES:
            # The newest train is among them however long it took: on an LTE link one lasted for longer than MOVES_S.
            first = [found[0], *(its for its in found[1:SURE] if found[0].ended_s - its.began_s <= MOVES_S)][-1]
            self._moved_s = first.began_s
        return [its for its in found if its.began_s >= self._moved_s]


def _least(sample: Sample) -> float:
    """Return the logarithm of what a link carries at least that a train passed, whatever its stamps were."""
    return log(sample.rate_bps * sample.seconds / (sample.seconds + LATE_S)) - 2 * CLOSE[1]
