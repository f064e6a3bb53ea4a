"""Simulated time, by which the controller goes."""

from __future__ import annotations

from math import floor


class SimulatedClocks:
    """Stand where they are put: `now_s` seconds after training began. Nothing takes time of a processor.

    Training begins with a whole second of Unix time, so that a moment's fraction is rounded alike whenever that was.
    """

    def __init__(self, began_s: float) -> None:
        self.zero_s = float(floor(began_s))
        self.now_s = 0.0

    def unix(self) -> float:
        return self.zero_s + self.now_s

    def monotonic(self) -> float:
        return self.now_s

    def processor(self) -> float:
        return 0.0
