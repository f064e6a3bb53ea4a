"""How much a link's rate goes up and down: what it carries just now is what it will carry only where it rests.

A rate that was redrawn stays; of one that changes from second to second the newest estimate says little of the next ten
seconds, and what it was like before says more.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp, log, sqrt
from statistics import mean, median

from testbed.telemetry.estimate import Estimate

#: Estimates that are looked back on, so many seconds apart at least, and how many say something.
KEPT, APART_S, LEAST = 8, 1.0, 4

#: A rate that goes up and down by so much (its logarithm) is expected half way between what it is and what it was like.
HALF_WAY = 0.15

#: A plan is to stay for so many of those times.
AHEAD = 8


@dataclass(slots=True)
class Restless:
    """One link's newest estimates, as logarithms."""

    _logs: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    _sampled_s: float = 0.0

    def add(self, estimate: Estimate, now_s: float) -> None:
        """Take what is known by now; for nothing where that is what was known before."""
        sampled_s = now_s - estimate.age_s
        if sampled_s - self._sampled_s >= APART_S:
            self._logs.append(log(estimate.rate_bps))
            self._sampled_s = sampled_s

    @property
    def spread(self) -> float:
        """By how much the logarithm changes from one time to the next, at the median: a step now and then is none."""
        logs = list(self._logs)
        if len(logs) < LEAST:
            return 0.0
        return median(abs(after - before) for before, after in pairwise(logs))

    @property
    def drift(self) -> float:
        """How far the logarithm goes while a plan is in force: as a random walk does."""
        return self.spread * sqrt(AHEAD)

    def expected_bps(self, estimate: Estimate) -> float:
        """What the link is expected to carry for a while."""
        if not self.spread:
            return estimate.rate_bps
        trust = 1 / (1 + (self.spread / HALF_WAY) ** 2)
        return exp(trust * log(estimate.rate_bps) + (1 - trust) * mean(self._logs))
