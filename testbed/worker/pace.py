"""Declared compute: a step takes the time that the experiment says, however fast this host is."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from testbed.workload import Workload


@dataclass(frozen=True, slots=True)
class Paced:
    """The time that reaching the declared time took: seconds slept, or seconds too late."""

    slept_s: float
    late_s: float


class Pace:
    """Sleeps to the moment at which a step that began at `begin` is declared to end.

    To that absolute moment, so neither the work nor the sleep's own error adds up. A declared time of 0 means as
    fast as it goes: nothing is slept, nothing is late.
    """

    def __init__(
        self,
        step_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._step_s = step_s
        self._clock = clock
        self._sleep = sleep
        self._began = clock()

    def begin(self) -> None:
        """Record that a step begins now."""
        self._began = self._clock()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Count the time inside towards no step."""
        entered = self._clock()
        yield
        self._began += self._clock() - entered

    def reach(self, factor: float = 1.0) -> Paced:
        """Wait for the step's declared end; this step's declared time is `factor` times the others'."""
        if not self._step_s:
            return Paced(0.0, 0.0)
        left = self._began + self._step_s * factor - self._clock()
        if left <= 0:
            return Paced(0.0, -left)
        self._sleep(left)
        return Paced(left, 0.0)


class Slowness:
    """Factors on a member's declared step time.

    The draw for a step follows from the run's seed, the member and the step's number alone: the same steps are slow
    whatever the strategy, so that strategies are compared under the same slowdowns.
    """

    def __init__(self, work: Workload) -> None:
        self._factor = work.slow_factor
        self._probability = work.slow_probability
        self._who = f"{work.seed} {work.shard}"
        self._moments = [at_s for at_s, _ in work.speeds]
        self._speeds = [speed for _, speed in work.speeds]

    def factor(self, step: int, elapsed_s: float) -> float:
        """The factor for the step of that number, begun `elapsed_s` seconds after training began."""
        slow = self._probability and Random(f"{self._who} {step}").random() < self._probability
        return (self._factor if slow else 1.0) / self._speed(elapsed_s)

    def _speed(self, elapsed_s: float) -> float:
        """Each row holds until the next; the last one's moment is when the trace begins again."""
        if not self._moments:
            return 1.0
        within = elapsed_s % self._moments[-1] if self._moments[-1] else 0.0
        return self._speeds[max(bisect_right(self._moments, within) - 1, 0)]
