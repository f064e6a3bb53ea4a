"""The clocks that a controller reads: the machine's, or those of a simulation.

Coordinators wait by the action `After`. ControllerService schedules the action on its event loop, and a
simulation in its event queue.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clocks(Protocol):
    """Seconds of three kinds."""

    def unix(self) -> float:
        """Unix time, which members tell theirs by. It may be set."""

    def monotonic(self) -> float:
        """What durations are measured by."""

    def processor(self) -> float:
        """What this thread has used of a processor."""


class SystemClocks:
    """The machine's."""

    def unix(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def processor(self) -> float:
        return time.thread_time()


SYSTEM = SystemClocks()
