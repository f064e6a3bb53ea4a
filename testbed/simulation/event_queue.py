"""Simulated time: the clocks, and the queue of events that moves them forward."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from math import floor, inf


class SimulatedClocks:
    """Clocks that show the simulated time `now_s`, in seconds after training began.

    Training begins at `zero_s`, a whole second of Unix time, so that every run rounds a moment's fraction alike.
    The processor clock stands still: deciding takes no processor time in a simulation.
    """

    def __init__(self, began_s: float) -> None:
        self.zero_s = float(floor(began_s))
        self.now_s = 0.0

    def unix(self) -> float:
        """Return the simulated Unix time in seconds."""
        return self.zero_s + self.now_s

    def monotonic(self) -> float:
        """Return the simulated seconds since the start."""
        return self.now_s

    def processor(self) -> float:
        """Return 0: simulated members use no processor time."""
        return 0.0


class EventQueue:
    """Calls that are due at moments of simulated time. Making a call first sets the `clocks` to its moment."""

    def __init__(self, clocks: SimulatedClocks) -> None:
        self.clocks = clocks
        self._number = count()
        self._entries: list[tuple[float, int, Callable[[], None]]] = []

    def schedule(self, at_s: float, call: Callable[[], None]) -> None:
        """Schedule a call for the moment `at_s`, or for now if that has passed. Calls of one moment stay in order."""
        heapq.heappush(self._entries, (max(at_s, self.clocks.now_s), next(self._number), call))

    @property
    def next_s(self) -> float:
        """The moment of the next call; infinite if none is scheduled."""
        return self._entries[0][0] if self._entries else inf

    def run_next(self) -> None:
        """Make the next call. Raises IndexError if none is scheduled."""
        self.clocks.now_s, _, call = heapq.heappop(self._entries)
        call()

    def run_until(self, until_s: float) -> None:
        """Make all calls due by `until_s`, also those that such calls schedule."""
        while self._entries and self._entries[0][0] <= until_s:
            self.run_next()
