"""A member's neighbourhood in the communication graph: the one it has now, and the one it gets in an iteration to come.

The graph changes in one iteration, the same for all members: before it they have their neighbours of the old graph,
from it on those of the new one. It must be an iteration that no member is in already, so it is agreed on in two phases:

    prepare   the coordinator asks each member how far it can go on; the member promises to enter no later iteration
    commit    the coordinator tells all members the latest of those, with their new neighbours; each goes on

No member stands still, unless the second phase takes longer than members need for the iterations they kept in hand.
"""

from __future__ import annotations

from math import inf

from testbed.sync.gossip.neighbours import Neighbours


class Neighbourhood:
    """`neighbours` are the member's now, `next` those it gets in the iteration `changing`: infinite without any."""

    def __init__(self, neighbours: Neighbours) -> None:
        self.neighbours = neighbours
        self.next: Neighbours | None = None
        self.changing = inf
        self._end = inf

    def prepare(self, end: int) -> int:
        """The member enters no iteration from `end` on until it hears more; `end`. ValueError while a change that was
        committed is still to come."""
        if self.next is not None:
            raise ValueError(
                f"{self.neighbours.member} changes its neighbours in iteration {self.changing}, and has not got there"
            )
        self._end = end
        return end

    def commit(self, iteration: int, neighbours: Neighbours) -> None:
        """The neighbours from `iteration` on. ValueError when that is before the end that was promised."""
        if iteration < self._end or self._end == inf:
            raise ValueError(
                f"{self.neighbours.member} changes its neighbours from {self._end} on, so not in iteration {iteration}"
            )
        self.next, self.changing, self._end = neighbours, iteration, inf

    def abort(self) -> None:
        """The change that was prepared does not come."""
        self._end = inf

    def change(self) -> Neighbours:
        """The iteration of the change has come; the new neighbours."""
        assert self.next is not None
        self.neighbours, self.next, self.changing = self.next, None, inf
        return self.neighbours

    def forget(self, gone: str) -> None:
        """`gone` has left the graphs; ValueError when that leaves no neighbour."""
        self.neighbours = self.neighbours.without(gone)
        if self.next is not None:
            self.next = self.next.without(gone)

    def open(self, iteration: int) -> bool:
        """Whether the member may enter `iteration`."""
        return iteration < self._end

    def leap_end(self, wanted: int) -> float:
        """Where a leap to `wanted` ends at the latest: every member enters the iteration of a change, none skips it."""
        return min(wanted, self.changing - 1, self._end - 1)

    def givers(self, iteration: int) -> tuple[str, ...]:
        """The members whose tokens it takes to enter `iteration`: in that of a change, both graphs' out-neighbours."""
        if self.next is None or iteration < self.changing:
            return self.neighbours.targets
        return _united(self.neighbours.targets, self.next.targets)

    @property
    def sources(self) -> tuple[str, ...]:
        """The in-neighbours, with those to come: they get tokens, and their updates may come at any time."""
        return _united(self.neighbours.sources, self.next.sources if self.next else ())


def _united(some: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*some, *others)))
