"""Means, medians and percentiles of figures; None where no figure is known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, median, quantiles


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None, or None without any."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def mean_if_all(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values; None without any, or if a value is None, such as the loss of a diverged model."""
    found = list(values)
    return None if None in found else mean_of_known(found)


def median_of_known(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are not None, or None without any."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def percentile(values: Sequence[float], percent: int) -> float | None:
    """Return a percentile, from 1 to 99, by linear interpolation; None without values."""
    if not values:
        return None
    if len(values) == 1:
        return float(values[0])
    return float(quantiles(values, n=100, method="inclusive")[percent - 1])
