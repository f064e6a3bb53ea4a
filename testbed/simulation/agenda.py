"""What is to happen, in the order of simulated time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from math import inf

from testbed.simulation.clocks import SimulatedClocks


class Agenda:
    """Puts the `clocks` forward to each moment for which something was entered, and has it happen."""

    def __init__(self, clocks: SimulatedClocks) -> None:
        self.clocks = clocks
        self._number = count()
        self._entries: list[tuple[float, int, Callable[[], None]]] = []

    def enter(self, at_s: float, act: Callable[[], None]) -> None:
        """Have `act` called at that moment, or now where it has passed; what was entered first comes first."""
        heapq.heappush(self._entries, (max(at_s, self.clocks.now_s), next(self._number), act))

    @property
    def due_s(self) -> float:
        """The moment of what comes next; infinite where nothing does."""
        return self._entries[0][0] if self._entries else inf

    def next(self) -> None:
        """Have what comes next happen; IndexError where nothing does."""
        self.clocks.now_s, _, act = heapq.heappop(self._entries)
        act()

    def play(self, until_s: float) -> None:
        """Have all happen that is to by then, and what comes of it."""
        while self._entries and self._entries[0][0] <= until_s:
            self.next()
