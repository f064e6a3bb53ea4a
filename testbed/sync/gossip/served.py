"""A member whose protocol has a server: whoever else comes or goes is that server's business."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import TYPE_CHECKING

from testbed.sync.gossip.effects import Advance, Send, Steps, TrainingMember
from testbed.sync.gossip.neighbours import Neighbours

if TYPE_CHECKING:
    from torch import Tensor


class ServedMember(TrainingMember):
    """It comes in the iteration `first`, 0 if it is there from the begin.

    Others that come need an iteration that nobody is in yet. So it holds back, from a promise until it is told to turn
    or that there is nothing to turn to, what says that it has entered that iteration.
    """

    def __init__(self, name: str, parameters: Tensor, first: int) -> None:
        super().__init__(name, parameters)
        self._first = first
        self._entered = first
        self._end = inf  # of the iterations that it may say it has entered

    def forget(self, gone: str) -> Iterable[Send]:
        """Nobody waits for who has died: nobody goes on without a server on which others hang."""
        return ()

    def promise(self, ahead: int) -> int:
        self._end = self._entered + ahead
        return self._entered + ahead

    def turn(self, iteration: int, neighbours: Neighbours) -> Iterable[Send]:
        self.release()
        return ()

    def release(self) -> None:
        self._end = inf

    def may_enter(self, iteration: int) -> bool:
        """Whether no promise is against it."""
        return iteration < self._end

    def enter(self, iteration: int) -> Steps[None]:
        """Say that it has entered an iteration that follows."""
        self._entered = iteration
        yield Advance(iteration)
