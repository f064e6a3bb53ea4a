"""Declared compute: a step takes the time that the experiment declares, however fast this host is."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from testbed.workload import STEP_OVERRUN, Workload


@dataclass(frozen=True, slots=True)
class Paced:
    """The end of a step relative to its declared end."""

    #: Seconds slept until the declared end; 0 for a late step.
    slept_s: float
    #: Seconds by which the step ended after its declared end.
    late_s: float
    #: Whether `late_s` is more than STEP_OVERRUN of the step's own declared time.
    is_late: bool = False


class Pace:
    """Sleeps until the declared end of a step.

    The end is an absolute moment after `begin`, so errors of sleeps do not add up. With a declared time of 0, steps
    take as long as they take: nothing is slept, and no step is late.

    Args:
        step_s: The declared time of a step in seconds.
        clock: Returns the current time in seconds.
        sleep: Sleeps for a number of seconds.
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
        """Leave the time inside the context out of the step's time."""
        entered = self._clock()
        yield
        self._began += self._clock() - entered

    def reach(self, factor: float = 1.0) -> Paced:
        """Wait until the step's declared end. This step's declared time is `factor` times that of the others."""
        if not self._step_s:
            return Paced(0.0, 0.0)
        declared_s = self._step_s * factor
        left = self._began + declared_s - self._clock()
        if left <= 0:
            return Paced(0.0, -left, is_late=-left > STEP_OVERRUN * declared_s)
        self._sleep(left)
        return Paced(left, 0.0)


class Slowness:
    """The factors on a member's declared step time: random slowdowns, and the trace of its speed.

    The draw for a step follows from the run's seed, the member and the step's number alone. So the same steps are slow
    under every strategy, and strategies are compared under the same slowdowns.
    """

    def __init__(self, work: Workload) -> None:
        self._factor = work.slow_factor
        self._probability = work.slow_probability
        self._who = f"{work.seed} {work.shard}"
        self._moments = [at_s for at_s, _ in work.speeds]
        self._speeds = [speed for _, speed in work.speeds]

    def factor(self, step: int, elapsed_s: float) -> float:
        """Return the factor for a step.

        Args:
            step: The step's number, from 1 on.
            elapsed_s: Seconds from the beginning of training to that of the step.
        """
        slow = self._probability and Random(f"{self._who} {step}").random() < self._probability
        return (self._factor if slow else 1.0) / self._speed(elapsed_s)

    def _speed(self, elapsed_s: float) -> float:
        """Return the speed at a moment. Each row holds until the next; at the last row's moment the trace repeats."""
        if not self._moments:
            return 1.0
        within = elapsed_s % self._moments[-1] if self._moments[-1] else 0.0
        return self._speeds[max(bisect_right(self._moments, within) - 1, 0)]
