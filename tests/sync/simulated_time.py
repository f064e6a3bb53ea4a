"""A clock of the synchronization library on the simulator's time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import inf

from testbed.simulation.agenda import Agenda
from testbed.simulation.clocks import SimulatedClocks


class SimulatedTime(SimulatedClocks):
    """Time that passes only as events are played, in one thread.

    A wait plays the events that come before its end. So one that begins within such an event ends before the wait that
    it interrupts, as an interrupted function does.
    """

    def __init__(self, began_s: float = 1000.0) -> None:
        super().__init__(began_s)
        self.agenda = Agenda(self)

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self.agenda.enter(self.now_s + seconds, call)

    def wait_for(self, changed: threading.Condition, holds: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Play events until `holds()`. Raises AssertionError where nothing happens any more that could end the wait."""
        end_s = inf if timeout_s is None else self.now_s + max(timeout_s, 0.0)
        while not holds():
            if self.agenda.due_s > end_s or self.agenda.due_s == inf:
                assert end_s < inf, "a wait without end, and nothing happens any more"
                self.now_s = max(self.now_s, end_s)
                return holds()
            self.agenda.next()
        return True

    def play(self, ended: Callable[[], bool], state: Callable[[], str] = lambda: "") -> None:
        """Play events until `ended()`. Raises AssertionError, with the `state()`, where there are none left."""
        while not ended():
            assert self.agenda.due_s < inf, f"nothing happens any more {state()}"
            self.agenda.next()
