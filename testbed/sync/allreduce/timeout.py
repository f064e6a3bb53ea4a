"""How long a round may take before something must be wrong, by how long the last ones took. Pure."""

from __future__ import annotations

from collections import deque

#: Rounds that are remembered: enough to have seen the slow phase of a trace or of a member that evaluates.
REMEMBERED = 32
#: Fewer rounds say nothing: the first ones have fresh connections, and steps that compile.
NEEDED = 3
#: A rate that drops to an eighth is a bad day, not a broken path; what is waited for longer is asked after.
SLACK = 8.0
#: Rounds of milliseconds still share a machine whose scheduler may take a second.
LEAST_S = 3.0


class AdaptiveTimeout:
    """`seconds` to wait in a round before peers are asked after: at most `most_s`, which is also when it has failed."""

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._took: deque[float] = deque(maxlen=REMEMBERED)

    def note(self, seconds: float) -> None:
        """A round took so long."""
        self._took.append(seconds)

    @property
    def seconds(self) -> float:
        """From the longest of the rounds that are remembered."""
        if len(self._took) < NEEDED:
            return self._most_s
        return min(max(SLACK * max(self._took), LEAST_S), self._most_s)
