"""A part of a processor's time that may be spent: considering plans must not slow down what they are made for."""

from __future__ import annotations

#: The part.
SHARE = 0.05

#: Seconds of it that are saved up at most, for when much happens after a quiet time, and what of them is kept for what
#: is urgent.
SAVED_S, RESERVE_S = 1.0, 0.5


class Allowance:
    """Fills as time passes and empties as it is spent, below zero too: then nothing is spent until that is made up."""

    def __init__(self) -> None:
        self._left_s = SAVED_S
        self._at_s: float | None = None

    def has_some(self, now_s: float, urgent: bool = False) -> bool:
        """Whether anything may be spent at this time, by any clock that does not jump."""
        passed_s = 0.0 if self._at_s is None else max(now_s - self._at_s, 0.0)
        self._left_s = min(self._left_s + SHARE * passed_s, SAVED_S)
        self._at_s = now_s
        return self._left_s > (0.0 if urgent else RESERVE_S)

    def spend(self, seconds: float) -> None:
        """So much of a processor was used."""
        self._left_s -= seconds
