"""Seeded generators of traces. Each names itself and its arguments, so that a file says how it was made."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from testbed.trace.trace import Row, Trace


@dataclass(frozen=True, slots=True)
class UniformRedraw:
    """A rate drawn uniformly from [low, high] bit/s every `period_s` seconds (the NetStorm evaluation's network)."""

    low_bps: float
    high_bps: float
    period_s: float
    duration_s: float
    seed: int

    def trace(self) -> Trace:
        draw = random.Random(self.seed)
        steps = math.ceil(self.duration_s / self.period_s)
        return Trace(tuple(Row(i * self.period_s, draw.uniform(self.low_bps, self.high_bps)) for i in range(steps)))


@dataclass(frozen=True, slots=True)
class OrnsteinUhlenbeck:
    """A rate that wanders about a mean and returns to it: the discretised Ornstein–Uhlenbeck process.

    x += (mean - x)·step/return + spread·mean·sqrt(2·step/return)·N(0, 1), so `spread` is the standard deviation
    relative to the mean in the long run; kept within a tenth and twice the mean.
    """

    mean_bps: float
    spread: float
    return_s: float
    step_s: float
    duration_s: float
    seed: int

    def trace(self) -> Trace:
        draw, rate, rows = random.Random(self.seed), self.mean_bps, []
        pull = self.step_s / self.return_s
        for i in range(math.ceil(self.duration_s / self.step_s)):
            rows.append(Row(round(i * self.step_s, 9), rate))
            rate += (self.mean_bps - rate) * pull
            rate += self.spread * self.mean_bps * math.sqrt(2 * pull) * draw.gauss(0, 1)
            rate = min(max(rate, self.mean_bps / 10), self.mean_bps * 2)
        return Trace(tuple(rows))


@dataclass(frozen=True, slots=True)
class Drop:
    """From `start_s` until `stop_s` of a trace, rates are multiplied by `factor`."""

    start_s: float
    stop_s: float
    factor: float

    def over(self, rows: Sequence[Row]) -> tuple[Row, ...]:
        """The rows with the drop in force. Its edges fall on the rows that lie in it."""
        return tuple(
            replace(row, rate_bps=row.rate_bps * self.factor)
            if row.rate_bps is not None and self.start_s <= row.time_s < self.stop_s
            else row
            for row in rows
        )
