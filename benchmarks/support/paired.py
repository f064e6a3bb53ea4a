"""Ratios of paired measurements: both of a pair were made on the same network, so what it was like cancels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import mean, stdev

from scipy.stats import t

#: How sure the interval is to hold the ratio of means.
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Ratio:
    """The geometric mean of ratios over `pairs`, and its interval (Student's t on the logarithms).

    With one pair the interval says nothing: from 0 to infinity.
    """

    value: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        interval = f" [{self.low:.2f}, {self.high:.2f}]" if self.pairs > 1 else ""
        return f"{self.value:.2f}{interval}"


def ratio(above: Mapping[int, float], below: Mapping[int, float]) -> Ratio | None:
    """`above` / `below` over the seeds that both have; None when there is none."""
    logs = [log(above[seed] / below[seed]) for seed in sorted(above.keys() & below.keys())]
    if not logs:
        return None
    middle = mean(logs)
    if len(logs) == 1:
        return Ratio(exp(middle), 0.0, float("inf"), 1)
    reach = t.ppf((1 + CONFIDENCE) / 2, len(logs) - 1) * stdev(logs) / sqrt(len(logs))
    return Ratio(exp(middle), exp(middle - reach), exp(middle + reach), len(logs))
