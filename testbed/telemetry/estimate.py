"""Estimates the rate of a link from samples: a probability distribution over rates that each sample sharpens.

    samples          o  o o  o   o  .  o o      o  a few percent off, .  delayed on its way, or by a late stamp
    belief     ______|_______|______|_______    where the link's rate may lie, as a distribution over rates
    between samples  the belief flattens: the rate may drift, and now and then it jumps to another value

A train over a full link shows the link's rate within a few percent; or a rate below it by any factor, where a host, TCP
or another train delayed it; or, seldom, a rate above it. Slow trains that agree with each other show that the link's
rate fell; slow trains that disagree show nothing. A train that did not fill the link shows a lower bound of its rate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil, exp, hypot, inf, log, pi, sqrt
from statistics import mean, median

import numpy as np

from testbed.telemetry.bottleneck import LATE_S, Floats, Sample

#: The distance between two neighbouring rates of a belief (logarithm); they range from 10 kbit/s to 1 Tbit/s.
STEP = 0.02
_RATES = np.arange(log(1e4), log(1e12), STEP)

#: The least number of trains for an estimate: one late stamp made a train of 190 Mbit/s over a link of 20.
LEAST = 3
#: The number of newest trains that are kept.
WINDOW = 25
#: How trains over a full link spread around its rate: (share of the trains, standard deviation of the logarithm), of
#: most trains and of some. Trains of 64 to 256 KiB are 0.8 % off at the median and 2.7 % at the 90th percentile.
CLOSE, WIDE = (0.65, 0.02), (0.10, 0.07)
#: (Share of the trains that lie below the rate, scale of their exponential distribution): over a link whose rate had
#: just fallen to 5 Mbit/s, packets came at 4.2 to 4.8. Without this term, a link that had fallen to 5 Mbit/s was
#: estimated at 24 for 28 s.
BELOW = (0.20, 0.15)
#: The exponential distribution of a train at the least rate, for each rate of the link; other trains' are multiples.
_TAIL = np.exp((_RATES[0] - _RATES) / BELOW[1])
#: The error of a train's duration in either direction: 12 packets take 5 ms over 26 Mbit/s, and lie within 5 %.
JITTER_S = 0.00025
#: How often a train over a full link comes far below the link's rate, and far above it: densities over the logarithm.
#: On the quickstart 2 % of such trains came below two thirds of the rate and 0.3 % a tenth above it; on a host with two
#: processors and a load of 27, 41 % and 4 %.
FAR_BELOW, FAR_ABOVE = 0.07, 0.02
#: The likelihood of a rate below that of a train that passed the link: for a train of LASTED_S, and for a shorter one.
EXCEEDED, EXCEEDED_SHORTLY = 1 / 40, 1 / 6
LASTED_S = 0.05
#: The probability that a rate jumps within a second, by up to the factor FAR: traces redraw a rate every 20 s, or drop
#: it for 30 s.
JUMPS, FAR = 0.05, 30.0
_JUMP = round(log(FAR) / STEP)
#: A belief is sure where the share MOSTLY of it lies within AGREES (logarithm) of one rate and SURE trains came at that
#: rate. Where only the share PERHAPS does, that rate is the estimate too, but not a known one.
MOSTLY, PERHAPS, AGREES, SURE = 0.8, 0.5, 0.10, 2
#: The longest time between the trains that move the estimate to another rate.
MOVES_S = 3.0
#: The number of newest agreeing trains whose median is the rate.
NEWEST = 5

#: The least half-width of the interval, relative to the estimate: for clocks, framing, lost packets, and a rate that
#: goes on changing. Of 29,000 estimates of links without an LTE trace, 6 % held the truth in 93.5 %, 10 % in 95.2 %.
LEAST_SPREAD = 0.10
#: The upper end of the interval over the estimate, for a link that was never full.
OPEN = 4.0

#: The standard deviations to either side that an interval of 95 % covers.
TWO_SIDED = 1.96
#: The drift of a rate in one second (standard deviation of the logarithm); it grows with the root of the time.
DRIFT = 0.03
#: The greatest doubt, that of an unknown link: about a third more or less.
UNKNOWN_DOUBT = 0.3

#: Seconds without a train after which a link is unknown. Confidence halves in the same time.
SILENCE_S = 10.0
#: The age of an estimate that is not sure.
UNSURE_S = SILENCE_S + 1.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated rate of a link, in bit/s of frames, with its interval of 95 %."""

    rate_bps: float
    low_bps: float
    high_bps: float
    #: Seconds since the newest train behind the estimate.
    age_s: float
    #: Seconds from the first to the last of the trains behind the estimate.
    over_s: float

    @property
    def known(self) -> bool:
        """True if the newest train behind the estimate is at most SILENCE_S old."""
        return self.age_s <= SILENCE_S

    @property
    def confidence(self) -> float:
        """The confidence in the estimate, in (0, 1]; it halves every SILENCE_S."""
        return float(0.5 ** (self.age_s / SILENCE_S))

    def doubt(self) -> tuple[float, float]:
        """Return the standard deviations of the rate's logarithm below and above the estimate, grown with its age."""
        drift = DRIFT * self.age_s**0.5
        below, above = log(self.rate_bps / self.low_bps) / TWO_SIDED, log(self.high_bps / self.rate_bps) / TWO_SIDED
        return min(below + drift, UNKNOWN_DOUBT), min(above + drift, UNKNOWN_DOUBT)

    def to_json(self) -> dict[str, float]:
        """Return the fields and the confidence, rounded, as plain values for JSON."""
        return {
            "rate_bps": round(self.rate_bps),
            "low_bps": round(self.low_bps),
            "high_bps": round(self.high_bps),
            "age_s": round(self.age_s, 3),
            "over_s": round(self.over_s, 3),
            "confidence": round(self.confidence, 3),
        }


class Belief:
    """The probability of each rate of a link, given its samples so far."""

    def __init__(self) -> None:
        self._mass = np.full(len(_RATES), 1 / len(_RATES))
        self._spread = 0.0  # variance of the logarithm that is not yet applied to the mass
        self._at_s: float | None = None

    def add(self, sample: Sample) -> None:
        """Update the belief by a sample that came no earlier than the samples before it, or hardly earlier."""
        if self._at_s is not None:
            self._age(max(sample.ended_s - self._at_s, 0.0))
        self._at_s = max(sample.ended_s, self._at_s or 0.0)
        if sample.full:
            self._mass *= _of_full(sample)
        else:
            lasted = sample.seconds >= LASTED_S
            below = max(ceil((_least(sample) - _RATES[0]) / STEP), 0)
            self._mass[:below] *= EXCEEDED if lasted else EXCEEDED_SHORTLY
        self._mass /= self._mass.sum()

    def _age(self, seconds: float) -> None:
        self._spread += DRIFT**2 * seconds
        sigma = self._spread**0.5 / STEP
        if sigma > 0.5:
            reach = min(int(3 * sigma) + 1, (len(_RATES) - 1) // 2)  # `convolve` returns the longer one's length
            kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
            self._mass = np.convolve(self._mass, kernel / kernel.sum(), mode="same")
            self._mass /= self._mass.sum()  # the ends lose a part
            self._spread = 0.0
        if seconds:
            jumped = 1 - exp(-JUMPS * seconds)
            near = self._near(_JUMP)
            near *= jumped / (2 * _JUMP + 1)
            self._mass *= 1 - jumped
            self._mass += near

    def _near(self, reach: int) -> Floats:
        """Return, for each rate, the share of the belief that lies within `reach` steps of it."""
        count = len(self._mass)
        sums = np.zeros(reach + 1 + count + reach)
        self._mass.cumsum(out=sums[reach + 1 : reach + 1 + count])
        sums[reach + 1 + count :] = sums[reach + count]
        found: Floats = sums[2 * reach + 1 :] - sums[: -2 * reach - 1]
        return found

    def likeliest(self) -> tuple[float, float]:
        """Return the logarithm of the likeliest rate, and the share of the belief within AGREES of it."""
        reach = round(AGREES / STEP)
        near = self._near(reach)
        best = int(near.argmax())
        around = slice(max(best - reach, 0), best + reach + 1)
        return float((_RATES[around] * self._mass[around]).sum() / self._mass[around].sum()), float(near[best])

    def quantile(self, part: float) -> float:
        """Return the logarithm of the rate at this quantile of the belief, from 0 to 1."""
        return float(_RATES[min(int(np.searchsorted(np.cumsum(self._mass), part)), len(_RATES) - 1)])


def _of_full(sample: Sample) -> Floats:
    """Return the likelihood of a sample of a full link, for each rate of the link."""
    found = np.full(len(_RATES), FAR_ABOVE)
    rate = log(sample.rate_bps)
    middle = (rate - _RATES[0]) / STEP
    above = slice(max(ceil(middle), 0), None)
    share, scale = BELOW
    found[above] = FAR_BELOW + share / scale * exp((rate - _RATES[0]) / scale) * _TAIL[above]
    jitter = JITTER_S / sample.seconds
    reach = ceil(3 * hypot(WIDE[1], jitter) / STEP)
    around = slice(max(int(middle) - reach, 0), max(int(middle) + reach + 1, 0))
    off = _RATES[around] - rate
    for part, sigma in (CLOSE, WIDE):
        sigma = hypot(sigma, jitter)
        found[around] += part / sigma / sqrt(2 * pi) * np.exp(-0.5 * (off / sigma) ** 2)
    return found


class RateEstimator:
    """Estimates the rate of one link; `declared_bps` is its rate before anything was measured."""

    def __init__(self, declared_bps: float) -> None:
        self._belief = Belief()
        self._full: deque[Sample] = deque(maxlen=WINDOW)
        self._passed: deque[Sample] = deque(maxlen=WINDOW)
        self._count = 0  # of the samples that filled the link, dropped ones included
        self._rate_bps = declared_bps
        self._moved_s = -inf  # samples before this time are of an earlier rate
        self._newest: tuple[Estimate, float] | None = None  # an estimate, and the time (Unix) that its age counts from

    def add(self, samples: Sequence[Sample]) -> None:
        """Update the estimate by the samples that came since the last call."""
        for sample in sorted(samples, key=lambda sample: sample.ended_s):
            self._belief.add(sample)
            (self._full if sample.full else self._passed).append(sample)
            self._count += sample.full
        ended_s = max((sample.ended_s for sample in samples), default=inf)
        if ended_s < self._moved_s:  # the clock was set back since
            self._moved_s = -inf
        # The estimate is made here and not when it is read: a controller reads it some fifteen times a round, and only
        # its age changes in between. Slower samples that did not fill the link change no more than that.
        if any(sample.full or _least(sample) > log(self._rate_bps) for sample in samples):
            self._newest = self._of_belief(ended_s)

    @property
    def newest_bps(self) -> float:
        """The rate of the newest train that filled the link; infinite before the first."""
        return self._full[-1].rate_bps if self._full else inf

    @property
    def contradicted(self) -> bool:
        """True if the estimate is unsure, or contradicted by the newest train that filled the link or a later one.

        A train that filled the link contradicts an estimate that is far from its rate, unless a later train proves that
        the link carries more. A later train that did not fill the link contradicts an estimate far below its rate, even
        if slower trains followed, which prove nothing.
        """
        if self._newest is None:
            return False
        if self._newest[0].age_s >= UNSURE_S:
            return True
        estimated, newest, full_s, slow = log(self._newest[0].rate_bps), -inf, -inf, False
        if self._full:
            newest = log(self._full[-1].rate_bps)
            full_s, slow = self._full[-1].ended_s, newest < estimated - 2 * AGREES
            if newest > estimated + 2 * AGREES:
                return True
        proven = max((_least(its) for its in self._passed if its.ended_s >= full_s), default=-inf)
        return proven > estimated + 2 * AGREES or (slow and proven <= newest + AGREES)

    def exceeds(self, rate_bps: float, since_s: float) -> bool:
        """Return whether a train that came since a time (Unix time) proves that the link carries clearly more."""
        return any(its.began_s >= since_s and _least(its) > log(rate_bps) + AGREES for its in self._passed)

    def estimate(self, now_s: float) -> Estimate | None:
        """Return the estimate of the link's rate as of `now_s` (Unix time), or None before enough was measured.

        None before LEAST trains filled the link, unless a train passed it faster than its declared rate.
        """
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
            older = (its for its in agreeing[1:NEWEST] if 0 <= newest.ended_s - its.began_s <= SILENCE_S)
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
        """Return the rate that passing trains prove at least, or None where it is not above the estimated rate.

        A short train proves its rate only where the belief has risen as high, which takes several that agree.
        """
        middle = self._belief.quantile(0.5)
        if middle <= log(self._rate_bps):
            return None
        recent = [sample for sample in self._passed if ended_s - sample.ended_s <= SILENCE_S]
        above = [sample for sample in recent if _least(sample) > log(self._rate_bps)]
        proven = (its.rate_bps for its in above if its.seconds >= LASTED_S or _least(its) <= middle)
        return max(proven, default=None)

    def _agreeing(self, likeliest: float) -> list[Sample]:
        """Return the full trains within AGREES of the rate `likeliest` since the link has that rate, newest first."""
        found = [its for its in reversed(self._full) if abs(log(its.rate_bps) - likeliest) <= AGREES]
        if found and abs(log(self._rate_bps) - likeliest) > AGREES:
            # The newest train counts however long it took: on an LTE link one lasted for longer than MOVES_S.
            first = [found[0], *(its for its in found[1:SURE] if found[0].ended_s - its.began_s <= MOVES_S)][-1]
            self._moved_s = first.began_s
        return [its for its in found if its.began_s >= self._moved_s]


def _least(sample: Sample) -> float:
    """Return the logarithm of the rate that a sample proves at least, even if its stamps were late."""
    return log(sample.rate_bps * sample.seconds / (sample.seconds + LATE_S)) - 2 * CLOSE[1]


#: The samples that are kept of a link: those of half a minute where links are full in each round.
KEPT_SAMPLES = 400

#: The estimates that are kept of a link, the least time between two of them, and the least number that says how much
#: the rate varies.
KEPT_ESTIMATES, APART_S, LEAST_ESTIMATES = 8, 1.0, 4

#: A rate whose logarithm changes by this much per step is expected half way between its newest estimate and its mean.
HALF_WAY = 0.15

#: The number of these steps for which a plan is to stay in force.
AHEAD = 8


@dataclass(frozen=True, slots=True)
class PastRate:
    """The median rate of a link in a stretch of time, and the lowest and highest median of its parts, in bit/s."""

    rate_bps: float
    low_bps: float
    high_bps: float
    #: Whether there are LEAST samples within the stretch, or else samples on both of its sides.
    known: bool


class RateHistory:
    """The samples of one link that filled it, in order, for stretches of time that are over.

        samples   o  o o      o   |  o    o  |    o o  o
                  `--- before ----' `-inside-' `--- after ---

    An estimate of the present can only look back. For a past stretch, the samples from both of its sides are known:
    they show the rate in between even if nothing filled the link then, and whether the rate moved.
    """

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=KEPT_SAMPLES)

    def add(self, samples: Iterable[Sample]) -> None:
        """Keep the samples in which the link was full."""
        full = [sample for sample in samples if sample.full]
        if full:
            merged = sorted([*self._samples, *full], key=lambda sample: sample.began_s)
            self._samples = deque(merged, maxlen=KEPT_SAMPLES)

    def between(self, began_s: float, ended_s: float) -> PastRate | None:
        """Return the median rate between two moments (Unix time) with its range; None if nothing ever filled the link.

        The nearest LEAST samples on both sides count too: for the rate where fewer than LEAST are inside, for the range
        where those inside are fewer than two groups of LEAST.
        """
        before = [sample for sample in self._samples if sample.ended_s <= began_s][-LEAST:]
        inside = [sample for sample in self._samples if sample.ended_s > began_s and sample.began_s < ended_s]
        after = [sample for sample in self._samples if sample.began_s >= ended_s][:LEAST]
        parts = [inside[i : i + LEAST] for i in range(0, len(inside), LEAST)]
        if len(parts) < 2:
            parts = [part for part in (before, inside, after) if part]
        if not parts:
            return None
        enough = len(inside) >= LEAST
        medians = [_median_bps(part) for part in parts]
        rate_bps = _median_bps(inside if enough else [*before, *inside, *after])
        return PastRate(rate_bps, min(medians), max(medians), enough or bool(before and after))


def _median_bps(samples: Sequence[Sample]) -> float:
    return median(sample.rate_bps for sample in samples)


@dataclass(slots=True)
class RateVariation:
    """The variation of one link's rate, by the logarithms of its newest estimates.

    The newest estimate predicts the next ten seconds only where the rate is steady. A rate that changed once stays; of
    a rate that changes from second to second, the mean of the past predicts more than the newest estimate.
    """

    _logs: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_ESTIMATES))
    _sampled_s: float = 0.0

    def add(self, estimate: Estimate, now_s: float) -> None:
        """Add the estimate as of `now_s`, unless its newest train came within APART_S of the last estimate's."""
        sampled_s = now_s - estimate.age_s
        if sampled_s - self._sampled_s >= APART_S:
            self._logs.append(log(estimate.rate_bps))
            self._sampled_s = sampled_s

    @property
    def spread(self) -> float:
        """The median change of the logarithm of the rate from one estimate to the next.

        0 if the rate jumped once and was steady before and after, and for fewer than LEAST_ESTIMATES estimates.
        """
        logs = list(self._logs)
        if len(logs) < LEAST_ESTIMATES:
            return 0.0
        return median(abs(after - before) for before, after in pairwise(logs))

    @property
    def drift(self) -> float:
        """The change of the logarithm that is expected while a plan is in force, as of a random walk."""
        return self.spread * sqrt(AHEAD)

    def expected_bps(self, estimate: Estimate) -> float:
        """Return the rate that the link is expected to carry while a plan is in force, in bit/s."""
        if not self.spread:
            return estimate.rate_bps
        trust = 1 / (1 + (self.spread / HALF_WAY) ** 2)
        return exp(trust * log(estimate.rate_bps) + (1 - trust) * mean(self._logs))
