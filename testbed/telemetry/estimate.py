"""The estimate of what a link carries, from samples of it.

    samples   o  o o  o   o o o  o  | x x  x x
    window                          |<------->|   what agrees with the newest: a change begins another one

Trains over a full link lie within some percent of its rate, so the newest few say what it carries now, and the ones
before them that agree make it more exact. Where they stop to agree the rate was another one. The window so reaches over
ten seconds where nothing changes and over half a second after a step, with nothing to tune for either.

Trains over links that were not full say only what these carry at least: they raise an estimate that they contradict.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf, log
from statistics import median

from testbed.telemetry.sample import Sample

#: Trains that are looked at together, the newest first. A single one is now and then far off, seldom three of five.
GROUP = 5
#: Fewer say nothing: a late stamp made one of 190 Mbit/s over a link of 20.
LEAST = 3
#: But so many in a row that are each below this part of the ones before are a fall: late stamps make trains look fast,
#: and while losses are mended few come at all.
FALLEN, FALLS = 2, 0.5
#: A group agrees when its median is within this part of that of the window. Trains of 64 to 256 KiB are 0.8 % off at
#: the median and 2.7 % at the 90th percentile.
AGREES = 0.06
#: The longest window: on a rate that wanders what is older says nothing of now, on a constant one it adds nothing.
WINDOW = 25

#: So many of the newest trains that did not fill a link, all above the estimate by AGREES, say that it carries more,
#: and so does a single one that lasted so long.
CONTRADICT, LASTED_S = 3, 0.05
#: Stamps may be so much late, which a short train looks faster by: three of 20 ms over a link of 200 Mbit/s came at 212
#: to 214, and each time it was probed for that, in the midst of a round, which took 8 % longer.
LATE_S = 0.003

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


@dataclass(slots=True)
class RateEstimator:
    """One link's, of which `declared_bps` is believed before anything was measured."""

    declared_bps: float
    _full: deque[Sample] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _passed: deque[Sample] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _newest: tuple[Estimate, float] | None = None  # as of the end of the newest train behind it, and when that was

    def add(self, samples: Sequence[Sample]) -> None:
        """Take what was seen since the last time."""
        for sample in sorted(samples, key=lambda sample: sample.ended_s):
            (self._full if sample.full else self._passed).append(sample)
        # Here, since a controller asks for the estimate some fifteen times a round, in which only its age changes.
        self._newest = self._of_samples()

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

    def _of_samples(self) -> tuple[Estimate, float] | None:
        window = _agreeing(list(self._full)) if len(self._full) >= LEAST else []
        if above := self._above(window):
            return _at_least(above), above[-1].ended_s
        return (_among(window), window[-1].ended_s) if window else None

    def _above(self, window: Sequence[Sample]) -> list[Sample]:
        """Trains that did not fill the link and carried more than it is said to: the fastest that lasted, or the newest
        if all of them did."""
        most_bps = (_middle(window) if window else self.declared_bps) * (1 + AGREES)
        passed = [sample for sample in self._passed if not window or sample.began_s > window[-1].began_s]
        recent = [sample for sample in passed if passed[-1].ended_s - sample.began_s <= SILENCE_S]
        lasted = [sample for sample in recent if sample.seconds >= LASTED_S and sample.rate_bps > most_bps]
        if lasted:
            return [max(lasted, key=lambda sample: sample.rate_bps)]
        newest = passed[-CONTRADICT:]
        return newest if len(newest) == CONTRADICT and all(_surely_bps(its) > most_bps for its in newest) else []


def _agreeing(samples: Sequence[Sample]) -> list[Sample]:
    """The newest samples, and those before them for as long as they agree and are no older than SILENCE_S."""
    recent = [sample for sample in samples if samples[-1].ended_s - sample.began_s <= SILENCE_S]
    samples = recent if len(recent) >= LEAST else samples[-LEAST:]
    if fallen := _fallen(samples):
        return fallen
    window = list(samples[-GROUP:])
    for stop in range(len(samples) - GROUP, 0, -GROUP):
        group = samples[max(stop - GROUP, 0) : stop]
        if abs(_middle(group) / _middle(window) - 1) > AGREES:
            break
        window = [*group, *window]
    return window


def _fallen(samples: Sequence[Sample]) -> list[Sample]:
    """The newest samples, if they are less than a group and the ones before them were much above all of them."""
    for count in range(FALLEN, GROUP):
        before, newest = samples[-GROUP - count : -count], samples[-count:]
        if len(before) < LEAST:
            break
        if max(sample.rate_bps for sample in newest) < FALLS * min(sample.rate_bps for sample in before):
            return list(newest)
    return []


def _surely_bps(sample: Sample) -> float:
    """What a train came at if its stamps made it look as much faster as they can."""
    return sample.rate_bps * sample.seconds / (sample.seconds + LATE_S)


def _middle(samples: Sequence[Sample]) -> float:
    return median(sample.rate_bps for sample in samples)


def _among(window: Sequence[Sample]) -> Estimate:
    """What full trains say, as the last of them ends."""
    rates = sorted(sample.rate_bps for sample in window)
    rate = median(rates)
    low = min(rates[0], rate * (1 - LEAST_SPREAD))
    high = max(rates[-1], rate * (1 + LEAST_SPREAD))
    return Estimate(rate, low, high, 0.0, window[-1].ended_s - window[0].began_s)


def _at_least(passed: Sequence[Sample]) -> Estimate:
    """What trains that filled nothing say: it is a better guess, and stays one."""
    rates = [sample.rate_bps for sample in passed]
    return Estimate(median(rates), min(rates), OPEN * median(rates), UNSURE_S, passed[-1].ended_s - passed[0].began_s)
