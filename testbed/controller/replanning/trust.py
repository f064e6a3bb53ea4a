"""What swaps brought of what they promised: how far the next promise is to be trusted."""

from __future__ import annotations

from statistics import fmean, median
from typing import NamedTuple

from testbed.controller.model.round_log import RoundLog

#: Swaps that are looked back on, and rounds before and after one that are compared.
KEPT, COMPARED = 3, 3

#: Rounds among which those are: at most so many go by the old plan before the new one is in force.
AMONG = 12


class Promise(NamedTuple):
    """The plan of `epoch` is to save the part `saves` of a round under that of the epoch `last`."""

    saves: float
    last: int
    epoch: int


class Trust:
    """The part of promised savings that the newest swaps brought; one more that brought all of it counts with them."""

    def __init__(self) -> None:
        self._brought: tuple[float, ...] = ()
        self._promise: Promise | None = None

    @property
    def part(self) -> float:
        """In (0, 1]."""
        return (1 + sum(self._brought)) / (1 + len(self._brought))

    def promised(self, promise: Promise) -> None:
        """Another plan was adopted. What became of the one before is not asked any more."""
        self._promise = promise

    def see(self, book: RoundLog) -> None:
        """A round is over: once there are enough under the new plan it is known how the promise was kept.

        The rounds before are taken at their mean: what made them slow may have come with the last of them.
        """
        if self._promise is None:
            return
        saves, last, epoch = self._promise
        before_s, after_s = (book.whole_s(book.count - AMONG, one) for one in (last, epoch))
        if len(after_s) < COMPARED or not before_s:
            return
        saved = 1 - median(after_s) / fmean(before_s[-COMPARED:])
        self._brought = (*self._brought, min(max(saved / saves, 0.0), 1.0))[-KEPT:]
        self._promise = None
