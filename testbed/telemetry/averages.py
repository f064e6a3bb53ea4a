"""Means, medians and percentiles of figures; None where no figure is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median, quantiles


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None, or None without any."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def mean_if_all(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values; None without any, or if a value is None, such as the loss of a diverged model."""
    found = list(values)
    return None if None in found else mean_of_known(found)


def means_if_all(figures: Iterable[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Return `mean_if_all` of each name's values, over the mappings that have the name."""
    values: dict[str, list[float | None]] = {}
    for named in figures:
        for name, value in named.items():
            values.setdefault(name, []).append(value)
    return {name: mean_if_all(found) for name, found in values.items()}


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
