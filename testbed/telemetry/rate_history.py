"""The rates that a link had in the past: in a stretch of time that is over, and how much they vary.

    samples   o  o o      o   |  o    o  |    o o  o
              `--- before ----' `-inside-' `--- after ---

An estimate of the present can only look back. Of a stretch that is over, the samples from both of its sides are known:
they say what the link carried in between even where nothing filled the link then, and whether its rate moved.

The newest estimate predicts the next ten seconds only where the rate is steady. A rate that changed once stays; of a
rate that changes from second to second, the mean of the past predicts more than the newest estimate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp, log, sqrt
from statistics import mean, median

from testbed.telemetry.estimate import LEAST, Estimate
from testbed.telemetry.trains import Sample

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
    """The samples of one link that filled it, in order."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=KEPT_SAMPLES)

    def add(self, samples: Iterable[Sample]) -> None:
        """Keep those of these samples in which the link was full."""
        full = [sample for sample in samples if sample.full]
        if full:
            merged = sorted([*self._samples, *full], key=lambda sample: sample.began_s)
            self._samples = deque(merged, maxlen=KEPT_SAMPLES)

    def between(self, began_s: float, ended_s: float) -> PastRate | None:
        """Return the rate between two moments (Unix time); None before anything filled the link."""
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
    """The variation of one link's rate, by the logarithms of its newest estimates."""

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
