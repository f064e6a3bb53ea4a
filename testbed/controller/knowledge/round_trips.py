"""The round trips of paths, as members' transfers had them since a path is what it is."""

from __future__ import annotations

import math
from collections import deque

from testbed.planning import Pair

#: The least round trip is taken over so many samples, so that a queue is not taken for distance, nor an old route
#: for the new one for long.
SAMPLES = 10

#: The kernel's least round trip is over so long (its default; net.ipv4.tcp_min_rtt_wlen): for that time after a path
#: became another one, what is less than the declared round trip may be that of the old path.
MIN_RTT_WINDOW_S = 300.0


class RoundTrips:
    """The least round trip of each edge. A path is the way there and back, and another one once it is declared so."""

    def __init__(self) -> None:
        self._seen: dict[Pair, deque[float]] = {}
        self._redeclared_s: dict[Pair, float] = {}

    def redeclare(self, pair: Pair, now_s: float) -> None:
        """The path between these is another one from now on."""
        for edge in (pair, pair[::-1]):  # the way back is part of the round trip
            self._seen.pop(edge, None)
            self._redeclared_s[edge] = now_s

    def add(self, pair: Pair, rtt_s: float, declared_s: float, now_s: float) -> None:
        """Take a measured round trip, or the declared one where it must be that of the path before the newest one."""
        if now_s - self.since_s(pair) <= MIN_RTT_WINDOW_S:
            rtt_s = max(rtt_s, declared_s)
        self._seen.setdefault(pair, deque(maxlen=SAMPLES)).append(rtt_s)

    def least_s(self, pair: Pair, declared_s: float) -> float:
        """The least of the newest; what is declared where none was seen."""
        return min(self._seen.get(pair, ()), default=declared_s)

    def since_s(self, pair: Pair) -> float:
        """When the path became what it is (Unix time); minus infinity where it always was."""
        return self._redeclared_s.get(pair, -math.inf)
