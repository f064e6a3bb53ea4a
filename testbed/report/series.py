"""Rates of links over time as step functions, and the errors of the controller's estimates of them. Pure.

A step function has n values and n + 1 edges: `values[i]` holds from `edges[i]` to `edges[i + 1]`. NaN stands where the
value is unknown, or the link was down or removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.report.record import RunRecord
from testbed.report.run_files import LinkRecord, TrafficRecord
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
        """Return the mean over [start, stop], weighted by time, of the known values; NaN where none is known."""
        return float(self.means_within(np.array([start]), np.array([stop]))[0])

    def means_within(self, starts: Floats, stops: Floats) -> Floats:
        """Return `mean` for each pair of a start and a stop."""
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
        """Return the mean over each interval between `edges`, with NaN as 0."""
        filled = np.where(np.isnan(self.values), 0.0, self.values)
        integral = np.concatenate([[0.0], np.cumsum(filled * np.diff(self.edges))])
        areas: Floats = np.diff(np.interp(edges, self.edges, integral))
        return areas / np.maximum(np.diff(edges), 1e-9)

    def thinned(self, limit: int) -> StepFunction:
        """Return at most about `limit` steps: the least and the greatest value of equal parts of the steps, in order.

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
    """A step function of time with a lower and an upper limit."""

    edges: Floats
    low: Floats
    middle: Floats
    high: Floats

    def grouped(self, limit: int) -> Band:
        """Return at most `limit` steps, each with the lowest `low`, first `middle` and highest `high` of its group."""
        if len(self.middle) <= limit:
            return self
        first = np.linspace(0, len(self.middle), limit, endpoint=False, dtype=int)
        low, high = np.fmin.reduceat(self.low, first), np.fmax.reduceat(self.high, first)
        return Band(np.append(self.edges[first], self.edges[-1]), low, self.middle[first], high)


def estimated(looks: Sequence[Mapping[str, Any]], link: str, end_s: float) -> Band:
    """Return the estimated rate of a link with its interval, in bit/s; NaN where the link was not known."""
    held = [look["links"].get(link) or {"age_s": np.inf} for look in looks]
    known = [estimate if estimate["age_s"] <= SILENCE_S else {} for estimate in held]
    middle = np.array([estimate.get("rate_bps", np.nan) for estimate in known])
    low, high = (
        np.array([estimate.get(name, rate) for estimate, rate in zip(known, middle, strict=True)])
        for name in ("low_bps", "high_bps")
    )
    times = [look["at_s"] for look in looks]
    until_s = min(end_s, times[-1] + SILENCE_S) if times else end_s  # the record has a greatest length
    return Band(np.array([*times, max([until_s, *times[-1:]])]), low, middle, high)


def rate_in_force(states: Sequence[LinkRecord], end_s: float) -> StepFunction:
    """Return a step function of the rate in force on a link, in bit/s; NaN where it was down or removed."""
    edges = [state.at_s for state in states]
    values = [state.rate_bps if state.passes else np.nan for state in states]
    return StepFunction(np.array([*edges, max(end_s, edges[-1])]), np.array(values))


def down_spans(states: Sequence[LinkRecord], end_s: float) -> list[tuple[float, float]]:
    """Return the (start, stop) of each time for which a link was down, but not removed."""
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
    """Return a step function of the rate at which bytes arrived over a link between samples, in bit/s."""
    return _per_second(samples, [sample.bytes.get(link) for sample in samples], factor=8.0)


def backlogged(samples: Sequence[TrafficRecord], link: str) -> StepFunction:
    """Return a step function of the share of time between samples in which a link was backlogged, from 0 to 1."""
    steps = _per_second(samples, [sample.busy_s.get(link) for sample in samples], factor=1.0)
    return StepFunction(steps.edges, np.clip(steps.values, 0.0, 1.0))


def steady_rate(samples: Sequence[TrafficRecord], link: str) -> tuple[StepFunction, StepFunction]:
    """Return two step functions over the backlogs of a link that were long enough to show its rate.

    Returns:
        The share of the time between samples that these backlogs took, from 0 to 1, and the rate in them in bit/s.
    """
    steady = _per_second(samples, [sample.steady_s.get(link) for sample in samples], factor=1.0)
    passed = _per_second(samples, [sample.steady_bytes.get(link) for sample in samples], factor=8.0)
    # A packet that an outage held up counts all of that time in the sample in which it passes, a second or more.
    shares = np.clip(steady.values, 0.0, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return StepFunction(steady.edges, shares), StepFunction(steady.edges, passed.values / shares)


def _per_second(samples: Sequence[TrafficRecord], counts: Sequence[float | None], factor: float) -> StepFunction:
    """Return a counter's growth per second, times `factor`; NaN where the counter is missing or was reset."""
    values = []
    for (before, after), (low, high) in zip(pairwise(samples), pairwise(counts), strict=True):
        length = after.at_s - before.at_s
        grew = low is not None and high is not None and high >= low and length > 0
        values.append(factor * (high - low) / length if grew else np.nan)  # type: ignore[operator]
    if not values:
        return StepFunction(np.array([0.0, 0.0]), np.array([np.nan]))
    return StepFunction(np.array([sample.at_s for sample in samples]), np.array(values))


@dataclass(frozen=True, slots=True)
class EstimateErrors:
    """The errors of a link's estimates that were at most SILENCE_S old, against the mean rate over their samples' time.

    Estimates of a link that was down are left out.
    """

    #: The relative error of each estimate.
    off: tuple[float, ...]
    #: For each estimate with an interval: whether the true rate lay in it.
    held: tuple[bool, ...]


def estimate_errors(record: RunRecord) -> dict[str, EstimateErrors]:
    """Return the errors of each link's estimates, for the links that have any."""
    found: dict[str, list[tuple[float, Mapping[str, Any]]]] = {}
    for look in record.estimates:
        for link, estimate in look["links"].items():
            if link in record.states and estimate["age_s"] <= SILENCE_S:
                found.setdefault(link, []).append((look["at_s"] - estimate["age_s"], estimate))
    errors = {link: _errors(rate_in_force(record.states[link], record.end_s), its) for link, its in found.items()}
    return {link: its for link, its in errors.items() if its.off}


def _errors(rate: StepFunction, estimates: list[tuple[float, Mapping[str, Any]]]) -> EstimateErrors:
    stops = np.array([until_s for until_s, _ in estimates])
    starts = stops - np.array([estimate.get("over_s", 1.0) for _, estimate in estimates])
    true = [
        (estimate, float(true_bps))
        for (_, estimate), true_bps in zip(estimates, rate.means_within(starts, stops), strict=True)
        if true_bps > 0  # neither down nor NaN
    ]
    return EstimateErrors(
        tuple(estimate["rate_bps"] / true_bps - 1 for estimate, true_bps in true),
        tuple(e["low_bps"] <= true_bps <= e["high_bps"] for e, true_bps in true if "low_bps" in e),
    )
