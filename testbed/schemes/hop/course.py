"""A member's way through the communication graphs: its place now, and the one it takes in an iteration to come.

A swap of the graph happens in one iteration, the same for all: before it members stand in the old graph, from it on in
the new one. It must be none that anybody is in already, so it is agreed on in two steps:

    who swaps   asks each member how far it can go on               promise: it enters no iteration from that one on
    who swaps   tells all the latest of those, with their places    turn: it goes on, and takes its place in that one

Nobody stands still, unless the second step takes longer than members need for the iterations they kept in hand.
"""

from __future__ import annotations

from math import inf

from testbed.sync.gossip.neighbours import Neighbours


class Course:
    """`neighbours` is the member's place now, `next` the one it takes in the iteration `turning`, infinite if none."""

    def __init__(self, neighbours: Neighbours) -> None:
        self.neighbours = neighbours
        self.next: Neighbours | None = None
        self.turning = inf
        self._end = inf

    def promise(self, end: int) -> int:
        """The member enters no iteration from `end` on until it hears more; `end`. ValueError while a turn is ahead."""
        if self.next is not None:
            raise ValueError(f"{self.neighbours.member} turns in iteration {self.turning}, and has not got there")
        self._end = end
        return end

    def turn(self, iteration: int, neighbours: Neighbours) -> None:
        """What was promised for: the place from `iteration` on. ValueError when it is before what was promised."""
        if iteration < self._end or self._end == inf:
            raise ValueError(f"{self.neighbours.member} turns from {self._end} on, so not in iteration {iteration}")
        self.next, self.turning, self._end = neighbours, iteration, inf

    def release(self) -> None:
        """There will be no turn after all."""
        self._end = inf

    def take(self) -> Neighbours:
        """The turn's iteration is there: the new place."""
        assert self.next is not None
        self.neighbours, self.next, self.turning = self.next, None, inf
        return self.neighbours

    def forget(self, gone: str) -> None:
        """`gone` has left the graphs; ValueError when that leaves nobody."""
        self.neighbours = self.neighbours.without(gone)
        if self.next is not None:
            self.next = self.next.without(gone)

    def open(self, iteration: int) -> bool:
        """Whether the member may enter `iteration`."""
        return iteration < self._end

    def leap_end(self, wanted: int) -> float:
        """Where a leap to `wanted` ends at the latest: all members enter the turn's iteration, and skip it never."""
        return min(wanted, self.turning - 1, self._end - 1)

    def givers(self, iteration: int) -> tuple[str, ...]:
        """Whose tokens it takes to enter `iteration`: in that of a turn, those of both graphs' out-neighbours."""
        if self.next is None or iteration < self.turning:
            return self.neighbours.targets
        return _united(self.neighbours.targets, self.next.targets)

    @property
    def sources(self) -> tuple[str, ...]:
        """The in-neighbours, with those to come: who get tokens, and whose updates may come at any time."""
        return _united(self.neighbours.sources, self.next.sources if self.next else ())


def _united(some: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*some, *others)))
