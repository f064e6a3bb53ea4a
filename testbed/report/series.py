"""Step functions of time made of a run's records, and their thinning for the page. Pure.

A series has n values and n + 1 edges: `values[i]` holds from `edges[i]` to `edges[i + 1]`; NaN where nothing is
known or nothing was there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.report.record import LinkRecord, TrafficRecord
from testbed.telemetry.estimate import SILENCE_S

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepFunction:
    """A step function of time."""

    edges: Floats
    values: Floats

    def __post_init__(self) -> None:
        if len(self.edges) != len(self.values) + 1:
            raise ValueError(f"{len(self.values)} values need {len(self.values) + 1} edges, not {len(self.edges)}")

    def mean(self, start: float, stop: float) -> float:
        """The mean over [start, stop] weighted by time, of what is known there; NaN when nothing is."""
        known = ~np.isnan(self.values)
        lengths = np.diff(np.clip(self.edges, start, stop)) * known
        total = lengths.sum()
        return float((lengths * np.where(known, self.values, 0.0)).sum() / total) if total > 0 else float("nan")

    def means_within(self, starts: Floats, stops: Floats) -> Floats:
        """The mean over each of many stretches, as `mean` has it of one."""
        known = ~np.isnan(self.values)
        lengths = np.diff(self.edges) * known
        seconds = np.concatenate([[0.0], np.cumsum(lengths)])
        integral = np.concatenate([[0.0], np.cumsum(lengths * np.where(known, self.values, 0.0))])
        total, areas = (
            np.interp(stops, self.edges, grown) - np.interp(starts, self.edges, grown) for grown in (seconds, integral)
        )
        found: Floats = np.where(total > 0, areas / np.where(total > 0, total, 1.0), np.nan)
        return found

    def means(self, edges: Floats) -> Floats:
        """The mean over each interval between `edges`, NaN counted as zero."""
        filled = np.where(np.isnan(self.values), 0.0, self.values)
        integral = np.concatenate([[0.0], np.cumsum(filled * np.diff(self.edges))])
        areas: Floats = np.diff(np.interp(edges, self.edges, integral))
        return areas / np.maximum(np.diff(edges), 1e-9)

    def thinned(self, limit: int) -> StepFunction:
        """At most about `limit` steps: equal parts of time, each shown by its extremes in the order they came.

        A figure that is 400 points wide shows no more, and no peak or drop is lost.
        """
        if len(self.values) <= limit:
            return self
        parts = np.array_split(np.arange(len(self.values)), limit // 2)
        edges, values = [], []
        for part in parts:
            inside = self.values[part]
            known = part[~np.isnan(inside)]
            if len(known) == 0:
                kept = part[:1]
            else:
                extremes = {int(known[self.values[known].argmin()]), int(known[self.values[known].argmax()])}
                kept = np.array(sorted(extremes))
            edges += [self.edges[part[0]], *self.edges[kept[1:]]]
            values += list(self.values[kept])
        return StepFunction(np.array([*edges, self.edges[-1]]), np.array(values))


@dataclass(frozen=True, slots=True)
class Band:
    """A step function of time between two others."""

    edges: Floats
    low: Floats
    middle: Floats
    high: Floats

    def grouped(self, limit: int) -> Band:
        """At most `limit` steps: of several together the lowest low, the first middle and the highest high."""
        if len(self.middle) <= limit:
            return self
        first = np.linspace(0, len(self.middle), limit, endpoint=False, dtype=int)
        low, high = np.fmin.reduceat(self.low, first), np.fmax.reduceat(self.high, first)
        return Band(np.append(self.edges[first], self.edges[-1]), low, self.middle[first], high)


def estimated(looks: Sequence[Mapping[str, Any]], link: str, end_s: float) -> Band:
    """What a link was estimated to carry (bit/s) and between what, as it was written down: NaN where it was not
    known."""
    held = [look["links"].get(link) or {"age_s": np.inf} for look in looks]
    known = [estimate if estimate["age_s"] <= SILENCE_S else {} for estimate in held]
    middle = np.array([estimate.get("rate_bps", np.nan) for estimate in known])
    low, high = (
        np.array([estimate.get(name, rate) for estimate, rate in zip(known, middle, strict=True)])
        for name in ("low_bps", "high_bps")
    )
    times = [look["at_s"] for look in looks]
    return Band(np.array([*times, max([end_s, *times[-1:]])]), low, middle, high)


def rate_in_force(states: Sequence[LinkRecord], end_s: float) -> StepFunction:
    """The rate that a link was told to have (bit/s): NaN where it was down or not there."""
    edges = [state.at_s for state in states]
    values = [state.rate_bps if state.passes else np.nan for state in states]
    return StepFunction(np.array([*edges, max(end_s, edges[-1])]), np.array(values))


def down_spans(states: Sequence[LinkRecord], end_s: float) -> list[tuple[float, float]]:
    """When a link was there but down."""
    spans: list[tuple[float, float]] = []
    ends = [*(state.at_s for state in states[1:]), max(end_s, states[-1].at_s)]
    for state, end in zip(states, ends, strict=True):
        if not state.there or state.up:
            continue
        if spans and spans[-1][1] == state.at_s:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((state.at_s, end))
    return spans


def arrived(samples: Sequence[TrafficRecord], link: str) -> StepFunction:
    """What arrived over a link between samples, in bit/s."""
    return _per_second(samples, [sample.bytes.get(link) for sample in samples], factor=8.0)


def backlogged(samples: Sequence[TrafficRecord], link: str) -> StepFunction:
    """The share of the time between samples that a link's queue was backlogged, 0 to 1."""
    steps = _per_second(samples, [sample.busy_s.get(link) for sample in samples], factor=1.0)
    return StepFunction(steps.edges, np.clip(steps.values, 0.0, 1.0))


def steady_rate(samples: Sequence[TrafficRecord], link: str) -> tuple[StepFunction, StepFunction]:
    """The share of the time between samples that a link's queue was backlogged in stretches long enough to tell a
    rate, 0 to 1, and what passed over those seconds, in bit/s."""
    steady = _per_second(samples, [sample.steady_s.get(link) for sample in samples], factor=1.0)
    passed = _per_second(samples, [sample.steady_bytes.get(link) for sample in samples], factor=8.0)
    # A packet that an outage held up counts all of that time where it passes, a second or more.
    shares = np.clip(steady.values, 0.0, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return StepFunction(steady.edges, shares), StepFunction(steady.edges, passed.values / shares)


def _per_second(samples: Sequence[TrafficRecord], counts: Sequence[float | None], factor: float) -> StepFunction:
    """The growth of a counter per second. NaN where it is not there, or began anew with a link made anew."""
    values = []
    for (before, after), (low, high) in zip(pairwise(samples), pairwise(counts), strict=True):
        length = after.at_s - before.at_s
        grew = low is not None and high is not None and high >= low and length > 0
        values.append(factor * (high - low) / length if grew else np.nan)  # type: ignore[operator]
    if not values:
        return StepFunction(np.array([0.0, 0.0]), np.array([np.nan]))
    return StepFunction(np.array([sample.at_s for sample in samples]), np.array(values))
