"""Iteration gaps: how far one member may be ahead of another by its protocol's rules, and a run's monitor of gaps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import permutations
from math import inf

from testbed.planning.graphs import Graph
from testbed.planning.view import Pair


def gap_bounds(
    graph: Graph,
    *,
    max_ig: int | None = None,
    backup: int = 0,
    staleness: int = 0,
    notify_ack: bool = False,
) -> Mapping[Pair, float]:
    """Return by how many iterations i can be ahead of j at most, for each pair (i, j): Hop's table of gaps.

    The table is in arXiv 1902.01064.

    Two things hold i back: the updates that i waits for, over the path j -> i, and the tokens or acknowledgements that
    i needs, over the path i -> j. Each hop adds to the bound of its path. The bound is the smaller one of both paths',
    infinite if neither holds i back.

    Args:
        graph: The communication graph.
        max_ig: The tokens' limit: each hop i -> j adds `max_ig`. None for no tokens.
        backup: Backup workers; if there are any, i need not wait for updates.
        staleness: Each hop j -> i adds 1 + `staleness`.
        notify_ack: Whether a member waits for acknowledgements: each hop i -> j then adds 2.
    """
    arrival = inf if backup else 1 + staleness
    grant = 2 if notify_ack else inf if max_ig is None else max_ig
    hops = graph.hops
    return {(i, j): min(arrival * hops[j][i], grant * hops[i][j]) for i, j in permutations(graph.members, 2)}


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken bound: `ahead` got `gap` iterations ahead of `behind`, while the rules allow `bound`."""

    ahead: str
    behind: str
    gap: int
    bound: float

    def __str__(self) -> str:
        return f"{self.ahead} is {self.gap} iterations ahead of {self.behind}, while the bound is {self.bound:g}"


class GapMonitor:
    """Follows every member's iteration and every pair's gap.

    Advances must come in the order of time: until a late advance is recorded, other members seem further ahead.
    A member is in iteration 0 before its first advance.

    Args:
        bounds: The bound of each pair (ahead, behind) of members, as `gap_bounds` returns it.
    """

    def __init__(self, members: Iterable[str], bounds: Mapping[Pair, float]) -> None:
        self._iteration = dict.fromkeys(members, 0)
        self._bounds = bounds
        self._widest: dict[Pair, int] = dict.fromkeys(bounds, 0)

    def advance(self, member: str, iteration: int) -> list[Violation]:
        """Record that `member` entered `iteration`. Returns the bounds that this breaks."""
        self._iteration[member] = iteration
        broken = []
        for other, behind in self._iteration.items():
            if other == member:
                continue
            pair, gap = (member, other), iteration - behind
            if gap > self._widest[pair]:
                self._widest[pair] = gap
            if gap > self._bounds[pair]:
                broken.append(Violation(member, other, gap, self._bounds[pair]))
        return broken

    def rejoin(self, member: str, iteration: int) -> None:
        """Follow a member that had died and starts again in `iteration`."""
        self._iteration[member] = iteration

    def remove(self, member: str, bounds: Mapping[Pair, float]) -> None:
        """Stop following a member that died; `bounds` replace those of the pairs that they name."""
        del self._iteration[member]
        self._bounds = {**self._bounds, **bounds}

    @property
    def iterations(self) -> Mapping[str, int]:
        """The iteration that each followed member is in."""
        return self._iteration

    @property
    def widest(self) -> Mapping[Pair, int]:
        """The widest gap so far of each pair (ahead, behind); 0 if the first was never ahead."""
        return self._widest
