"""A member's neighbours in the communication graph, and those of a later iteration, in which the graph changes.

The graph changes in one iteration, the same for all members: before it they have the neighbours of the old graph, from
it on those of the new one. No member may have entered that iteration, so it is agreed on in two phases:

    prepare   the coordinator asks each member for an iteration; the member promises not to enter it
    commit    the coordinator tells all members the latest of these iterations, and their new neighbours

No member waits, unless the second phase takes longer than the iterations that members may still enter.
"""

from __future__ import annotations

from math import inf

from testbed.sync.gossip.neighbours import Neighbours


class Neighbourhood:
    """A member's neighbours, and those after the next change of the graph.

    Attributes:
        neighbours: The present neighbours.
        next: The neighbours after the change; None without a change.
        changing: The iteration of the change; infinite without one.
    """

    def __init__(self, neighbours: Neighbours) -> None:
        self.neighbours = neighbours
        self.next: Neighbours | None = None
        self.changing = inf
        self._end = inf

    def prepare(self, end: int) -> int:
        """Promise to enter no iteration from `end` on until `commit` or `abort`; return `end`.

        Raises:
            ValueError: A committed change has not taken place yet.
        """
        if self.next is not None:
            raise ValueError(f"{self.neighbours.member} has yet to change its neighbours, in iteration {self.changing}")
        self._end = end
        return end

    def commit(self, iteration: int, neighbours: Neighbours) -> None:
        """Set the neighbours from `iteration` on. Raises ValueError where that is before the promised end."""
        if iteration < self._end or self._end == inf:
            raise ValueError(
                f"{self.neighbours.member} promised a change from {self._end} on, not in iteration {iteration}"
            )
        self.next, self.changing, self._end = neighbours, iteration, inf

    def abort(self) -> None:
        """Cancel the change that was prepared."""
        self._end = inf

    def change(self) -> Neighbours:
        """Make the next neighbours the present ones, in the iteration of the change, and return them."""
        assert self.next is not None
        self.neighbours, self.next, self.changing = self.next, None, inf
        return self.neighbours

    def remove(self, gone: str) -> None:
        """Remove `gone` from both graphs. Raises ValueError where that leaves no neighbour."""
        self.neighbours = self.neighbours.without(gone)
        if self.next is not None:
            self.next = self.next.without(gone)

    def open(self, iteration: int) -> bool:
        """Return whether no promise keeps the member from entering `iteration`."""
        return iteration < self._end

    def leap_end(self, wanted: int) -> float:
        """Return where a leap to `wanted` ends at the latest: no member may leap over a change of the graph."""
        return min(wanted, self.changing - 1, self._end - 1)

    def givers(self, iteration: int) -> tuple[str, ...]:
        """Return the members whose tokens it takes to enter `iteration`: out-neighbours, of both graphs at a change."""
        if self.next is None or iteration < self.changing:
            return self.neighbours.targets
        return _united(self.neighbours.targets, self.next.targets)

    @property
    def sources(self) -> tuple[str, ...]:
        """The present and the next in-neighbours: they get tokens, and their updates may come at any time."""
        return _united(self.neighbours.sources, self.next.sources if self.next else ())


def _united(some: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*some, *others)))
