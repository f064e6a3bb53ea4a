"""Unix time, by which members say when something happened, as moments of a clock that nobody sets."""

from __future__ import annotations

from collections import deque

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
