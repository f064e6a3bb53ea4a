"""How often, and how soon, a worker that died is started anew. Pure; times are monotonic seconds."""

from __future__ import annotations

#: The first time a worker is started anew at once; the second time after so long, then after twice that, …
FIRST_PAUSE_S = 1.0
#: … and never after more than this.
LONGEST_PAUSE_S = 30.0

#: A worker that dies once more than this is not started again: what ends it will do so again. The last pause is
#: over some 90 s after the first death.
MOST_RESTARTS = 8

#: One that has run for so long did not die of its start: its earlier deaths are forgotten.
STEADY_S = 60.0


class Restarts:
    """One worker's."""

    def __init__(self) -> None:
        self._count = 0
        self._started: float | None = None
        self._due: float | None = None

    @property
    def over(self) -> bool:
        """Whether it has died too often."""
        return self._count > MOST_RESTARTS

    def died(self, now: float) -> None:
        """It is dead; said once or more often."""
        if self._due is not None:
            return
        if self._started is not None and now - self._started >= STEADY_S:
            self._count = 0
        self._count += 1
        self._due = now + (min(FIRST_PAUSE_S * 2 ** (self._count - 2), LONGEST_PAUSE_S) if self._count > 1 else 0.0)

    def due(self, now: float) -> bool:
        """Whether it is to be started now."""
        return self._due is not None and not self.over and now >= self._due

    def started(self, now: float) -> None:
        """It was."""
        self._started, self._due = now, None
