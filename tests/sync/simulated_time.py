"""A clock of the synchronization library on the simulator's time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import inf

from testbed.simulation.event_queue import EventQueue, SimulatedClocks


class SimulatedTime(SimulatedClocks):
    """Time that passes only when events run, in one thread.

    A wait runs the events before its end. So a wait that begins within such an event ends before the outer wait, like a
    nested function call.
    """

    def __init__(self, began_s: float = 1000.0) -> None:
        super().__init__(began_s)
        self.queue = EventQueue(self)

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self.queue.schedule(self.now_s + seconds, call)

    def wait_for(self, changed: threading.Condition, holds: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Run events until `holds()`. Raises AssertionError if no event is left that could end the wait."""
        end_s = inf if timeout_s is None else self.now_s + max(timeout_s, 0.0)
        while not holds():
            if self.queue.next_s > end_s or self.queue.next_s == inf:
                assert end_s < inf, "a wait without a timeout, and no event is left"
                self.now_s = max(self.now_s, end_s)
                return holds()
            self.queue.run_next()
        return True

    def play(self, ended: Callable[[], bool], state: Callable[[], str] = lambda: "") -> None:
        """Run events until `ended()`. Raises AssertionError with the `state()` if no event is left."""
        while not ended():
            assert self.queue.next_s < inf, f"no event is left {state()}"
            self.queue.run_next()
