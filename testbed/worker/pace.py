"""Declared compute: a step takes the time that the experiment says, however fast this host is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Paced:
    """What reaching the declared time took: seconds slept, or seconds too late."""

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
        """A step begins."""
        self._began = self._clock()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """The time inside belongs to no step."""
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
