"""A clock of the synchronization library on the simulator's time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import inf

from testbed.simulation.event_queue import EventQueue, SimulatedClocks


class SimulatedTime(SimulatedClocks):
    """Time that passes only as events are played, in one thread.

    A wait plays the events that come before its end. So one that begins within such an event ends before the wait that
    it interrupts, as an interrupted function does.
    """

    def __init__(self, began_s: float = 1000.0) -> None:
        super().__init__(began_s)
        self.queue = EventQueue(self)

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self.queue.schedule(self.now_s + seconds, call)

    def wait_for(self, changed: threading.Condition, holds: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Play events until `holds()`. Raises AssertionError where nothing happens any more that could end the wait."""
        end_s = inf if timeout_s is None else self.now_s + max(timeout_s, 0.0)
        while not holds():
            if self.queue.next_s > end_s or self.queue.next_s == inf:
                assert end_s < inf, "a wait without end, and nothing happens any more"
                self.now_s = max(self.now_s, end_s)
                return holds()
            self.queue.run_next()
        return True

    def play(self, ended: Callable[[], bool], state: Callable[[], str] = lambda: "") -> None:
        """Play events until `ended()`. Raises AssertionError, with the `state()`, where there are none left."""
        while not ended():
            assert self.queue.next_s < inf, f"nothing happens any more {state()}"
            self.queue.run_next()
