"""The clocks that a controller reads, of the machine or of a simulation, and the conversion of members' Unix times.

Coordinators wait by the action `After`. ControllerService schedules the action on its event loop, and a
simulation in its event queue.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Protocol


class Clocks(Protocol):
    """The three clocks that a controller reads, each in seconds."""

    def unix(self) -> float:
        """Return Unix time, in which members report. An administrator or NTP may set this clock."""

    def monotonic(self) -> float:
        """Return the time by which durations are measured."""

    def processor(self) -> float:
        """Return the processor time that this thread has used."""


class SystemClocks:
    """The clocks of the machine that the controller runs on."""

    def unix(self) -> float:
        """Return Unix time."""
        return time.time()

    def monotonic(self) -> float:
        """Return the time since the machine booted."""
        return time.monotonic()

    def processor(self) -> float:
        """Return the processor time that this thread has used."""
        return time.thread_time()


SYSTEM = SystemClocks()


#: A jump above this means that the clock was set. NTP slews a clock by only 0.5 ms a second.
SET_S = 0.5


class UnixClock:
    """A host's Unix clock, which may be set at any time. The caller passes the current readings of both clocks."""

    def __init__(self, unix_s: float, monotonic_s: float) -> None:
        self._ahead_s = deque([unix_s - monotonic_s], maxlen=2)

    def moment(self, said_s: float, unix_s: float, monotonic_s: float) -> float:
        """Convert a reading of the Unix clock to monotonic time.

        The reading may be from before the clock was last set: the later of the two possible moments is returned, and
        never one in the future.

        Args:
            said_s: The reading, in Unix seconds.
            unix_s: Unix time now.
            monotonic_s: Monotonic time now.
        """
        if abs(unix_s - monotonic_s - self._ahead_s[-1]) > SET_S:
            self._ahead_s.append(unix_s - monotonic_s)
        moments = (said_s - ahead_s for ahead_s in self._ahead_s)
        return max((moment for moment in moments if moment <= monotonic_s), default=monotonic_s)
