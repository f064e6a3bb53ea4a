"""Means with intervals, and ratios of paired measurements; both of a pair ran on the same network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, log, sqrt
from statistics import mean, stdev

from scipy.stats import t

#: The probability that an interval holds the ratio of means.
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


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half of its interval by Student's t; infinity for one value."""
    if len(values) < 2:
        return mean(values), inf
    quantile = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    return mean(values), quantile * stdev(values) / sqrt(len(values))


def ratio(above: Mapping[int, float], below: Mapping[int, float]) -> Ratio | None:
    """Return the ratio of `above` to `below` over the seeds that both have, or None without any."""
    logs = [log(above[seed] / below[seed]) for seed in sorted(above.keys() & below.keys())]
    if not logs:
        return None
    middle, half = interval(logs)
    return Ratio(exp(middle), exp(middle - half), exp(middle + half), len(logs))
