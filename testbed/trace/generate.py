"""Seeded generators of traces. `str(generator)` names it with its arguments, so that a file says how it was made."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from testbed.trace.resample import MOST_ROWS
from testbed.trace.trace import Row, Trace, TraceError, lasting


class Generator(Protocol):
    """Anything that makes the same trace each time."""

    def trace(self) -> Trace:
        """Return the trace. Raises TraceError where the generator's arguments make none."""


def _moments(duration_s: float, step_s: float, name: str = "step") -> list[float]:
    """Return the moments from 0 on, a step apart, before the duration. `name` is the step's name in errors."""
    _above_zero(**{"duration": duration_s, name: step_s})
    if duration_s / step_s > MOST_ROWS:
        text = f"{duration_s:g} s in steps of {step_s:g} s are over {MOST_ROWS} rows; take a longer `{name}`"
        raise TraceError(text, field=name, given=step_s)
    moments = (round(i * step_s, 9) for i in range(math.ceil(duration_s / step_s)))
    return [moment for moment in moments if moment < duration_s]  # 2.1/0.7 is a hair above 3


def _above_zero(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise TraceError(f"{name} is {value:g}; write a finite number above 0", field=name, given=value)


def _short_beside(name: str, seconds: float, step_s: float, parts: int) -> None:
    """Raise TraceError if a step is longer than a time divided by `parts`: no row would show that time."""
    if step_s > seconds / parts:
        text = f"a step of {step_s:g} s is too long for a {name} of {seconds:g} s; write {seconds / parts:g} s or less"
        raise TraceError(text, field="step", given=step_s)


def _kept(rate_bps: float, mean_bps: float) -> float:
    """Return the rate, limited to between a tenth of the mean and twice the mean."""
    return min(max(rate_bps, mean_bps / 10), mean_bps * 2)


@dataclass(frozen=True, slots=True)
class UniformRedraw:
    """A rate drawn uniformly from [low, high] bit/s every `period_s` seconds (the NetStorm evaluation's network)."""

    low_bps: float
    high_bps: float
    period_s: float
    duration_s: float
    seed: int

    def trace(self) -> Trace:
        """Draw the trace: a rate for each period, uniform between the two limits."""
        _above_zero(low=self.low_bps, high=self.high_bps)
        if self.low_bps > self.high_bps:
            text = f"low is {self.low_bps:g} bit/s, above high, {self.high_bps:g} bit/s; write the smaller one as low"
            raise TraceError(text, field="low", given=self.low_bps)
        draw = random.Random(self.seed)
        moments = _moments(self.duration_s, self.period_s, "period")
        rows = [Row(moment, draw.uniform(self.low_bps, self.high_bps)) for moment in moments]
        return Trace(lasting(rows, self.duration_s))


@dataclass(frozen=True, slots=True)
class OrnsteinUhlenbeck:
    """A rate that wanders about a mean and returns to it: the discretised Ornstein–Uhlenbeck process.

    x += (mean - x)·step/return + spread·mean·sqrt(2·step/return)·N(0, 1), so in the long run `spread` is the standard
    deviation relative to the mean. The rate stays between a tenth of the mean and twice the mean.
    """

    mean_bps: float
    spread: float
    return_s: float
    step_s: float
    duration_s: float
    seed: int

    def trace(self) -> Trace:
        """Draw the trace: steps of a walk that the mean pulls back."""
        _above_zero(mean=self.mean_bps, **{"return": self.return_s})
        _short_beside("return", self.return_s, self.step_s, 4)
        draw, rate, rows = random.Random(self.seed), self.mean_bps, []
        pull = self.step_s / self.return_s
        for moment in _moments(self.duration_s, self.step_s):
            rows.append(Row(moment, rate))
            rate += (self.mean_bps - rate) * pull
            rate += self.spread * self.mean_bps * math.sqrt(2 * pull) * draw.gauss(0, 1)
            rate = _kept(rate, self.mean_bps)
        return Trace(lasting(rows, self.duration_s))


@dataclass(frozen=True, slots=True)
class Markov:
    """A rate that jumps between states: a Markov chain with one transition a step, from the first state on.

    `transition[i][j]` is the probability that state j follows state i; each row sums to 1.
    """

    rates_bps: tuple[float, ...]
    transition: tuple[tuple[float, ...], ...]
    step_s: float
    duration_s: float
    seed: int

    @classmethod
    def dwelling(
        cls, rates_bps: Sequence[float], dwell_s: float, step_s: float, duration_s: float, seed: int
    ) -> Markov:
        """Return a chain whose states last `dwell_s` in the mean (geometrically); then any other state follows."""
        _above_zero(dwell=dwell_s)
        _short_beside("dwell", dwell_s, step_s, 1)
        leave, others = step_s / dwell_s, len(rates_bps) - 1
        rows = (
            tuple(1 - leave if j == i else leave / others for j in range(others + 1)) if others else (1.0,)
            for i in range(others + 1)
        )
        return cls(tuple(rates_bps), tuple(rows), step_s, duration_s, seed)

    def trace(self) -> Trace:
        """Draw the trace: a state for each step, by the transitions' probabilities."""
        self._check()
        draw, state, rows = random.Random(self.seed), 0, []
        for moment in _moments(self.duration_s, self.step_s):
            rows.append(Row(moment, self.rates_bps[state]))
            state = draw.choices(range(len(self.rates_bps)), self.transition[state])[0]
        return Trace(lasting(rows, self.duration_s))

    def _check(self) -> None:
        states = len(self.rates_bps)
        if not states:
            raise TraceError("the chain has no states; give a rate for each", field="rates")
        _above_zero(**{f"state {i}": rate for i, rate in enumerate(self.rates_bps)})
        if len(self.transition) != states or any(len(row) != states for row in self.transition):
            text = f"the transition matrix must have {states} rows with {states} probabilities, as there are states"
            raise TraceError(text, rule="shape", field="transition")
        for i, row in enumerate(self.transition):
            if not all(0 <= each <= 1 for each in row) or not math.isclose(sum(row), 1, abs_tol=1e-6):
                text = f"row {i} of the transition matrix must be probabilities that sum to 1"
                raise TraceError(text, rule="sum", field="transition", given=i)


@dataclass(frozen=True, slots=True)
class Diurnal:
    """A rate that follows the day: mean·(1 - swing·cos(2πt/day))·(1 + noise·N(0, 1)), least at time 0.

    `day_s` may be a short day. The rate stays between a tenth of the mean and twice the mean.
    """

    mean_bps: float
    swing: float
    noise: float
    day_s: float
    step_s: float
    duration_s: float
    seed: int

    def trace(self) -> Trace:
        """Draw the trace: a cosine with a period of a day, and noise on each step."""
        _above_zero(mean=self.mean_bps, day=self.day_s)
        _short_beside("day", self.day_s, self.step_s, 8)
        draw, rows = random.Random(self.seed), []
        for moment in _moments(self.duration_s, self.step_s):
            rate = self.mean_bps * (1 - self.swing * math.cos(2 * math.pi * moment / self.day_s))
            rows.append(Row(moment, _kept(rate * (1 + self.noise * draw.gauss(0, 1)), self.mean_bps)))
        return Trace(lasting(rows, self.duration_s))


@dataclass(frozen=True, slots=True)
class Outages:
    """A steady rate with outages: the link is up for `up_s`, then loses everything for `down_s`, both in the mean.

    Both times are exponential, to the millisecond, and at least a millisecond long. The link begins up.
    """

    rate_bps: float
    up_s: float
    down_s: float
    duration_s: float
    seed: int

    def trace(self) -> Trace:
        """Draw the trace: exponential spans with the link's rate, and between them spans that lose all packets."""
        _above_zero(rate=self.rate_bps, up=self.up_s, down=self.down_s)
        shorter = "up" if self.up_s < self.down_s else "down"
        _moments(self.duration_s, max(min(self.up_s, self.down_s), 1e-3), shorter)  # refuses too many rows
        draw, moment, loss, rows = random.Random(self.seed), 0.0, 0.0, []
        while moment < self.duration_s:
            rows.append(Row(moment, self.rate_bps, loss=loss))
            span = draw.expovariate(1 / (self.down_s if loss else self.up_s))
            moment, loss = round(moment + max(span, 1e-3), 3), 1.0 - loss
        return Trace(lasting(rows, self.duration_s))


@dataclass(frozen=True, slots=True)
class Drop:
    """A drop of a trace's rates: from `start_s` until `stop_s` they are multiplied by `factor`."""

    start_s: float
    stop_s: float
    factor: float

    def over(self, rows: Sequence[Row]) -> tuple[Row, ...]:
        """Return the rows with the drop in force. It begins and ends at rows: with the first and last row within it."""
        return tuple(
            replace(row, rate_bps=row.rate_bps * self.factor)
            if row.rate_bps is not None and self.start_s <= row.time_s < self.stop_s
            else row
            for row in rows
        )
