"""The clocks that a controller reads, the machine's or a simulation's, and what members' Unix times mean on them.

Coordinators wait by the action `After`. ControllerService schedules the action on its event loop, and a
simulation in its event queue.
"""

from __future__ import annotations

import time
from collections import deque
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


#: A clock that is set differs by more than this at once; one that is slewed, as NTP does it, by 0.5 ms a second.
SET_S = 0.5


class UnixClock:
    """Of a host, where it may be set at any time. Who asks it says what it and the monotonic clock say now."""

    def __init__(self, unix_s: float, monotonic_s: float) -> None:
        self._ahead_s = deque([unix_s - monotonic_s], maxlen=2)

    def moment(self, said_s: float, unix_s: float, monotonic_s: float) -> float:
        """What was `said_s` on this clock, in seconds of the monotonic one: by the clock as it is, or as it was before
        it was set last, whichever is later; and never later than now."""
        if abs(unix_s - monotonic_s - self._ahead_s[-1]) > SET_S:
            self._ahead_s.append(unix_s - monotonic_s)
        moments = (said_s - ahead_s for ahead_s in self._ahead_s)
        return max((moment for moment in moments if moment <= monotonic_s), default=monotonic_s)
