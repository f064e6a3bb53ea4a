"""The families of graphs that decentralized training is compared on, over any members in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isqrt

from testbed.planning.graphs.graph import Graph, GraphError
from testbed.planning.view import Pair


def ring(members: Sequence[str]) -> Graph:
    """Each member with the next, both ways."""
    return Graph.undirected(members, _ring_pairs(members))


def ring_based(members: Sequence[str]) -> Graph:
    """A ring and a chord from each member to the opposite one (Hop, evaluation); an even number of members."""
    return Graph.undirected(members, _ring_based_pairs(members))


def double_ring(members: Sequence[str]) -> Graph:
    """Two ring-based graphs, one over each half of the members, joined twin by twin (Hop, evaluation)."""
    if len(members) % 4:
        raise GraphError(
            f"double-ring needs a multiple of 4 members, not {len(members)}: two halves, each even",
            field="members",
            given=len(members),
        )
    half = len(members) // 2
    left, right = members[:half], members[half:]
    pairs = [*_ring_based_pairs(left), *_ring_based_pairs(right), *zip(left, right, strict=True)]
    return Graph.undirected(members, pairs)


def exponential(members: Sequence[str]) -> Graph:
    """Each member sends to those 1, 2, 4, ... places on: one way, about log2(n) edges out and in."""
    n = len(members)
    strides = [2**power for power in range((n - 1).bit_length())]
    return Graph(
        tuple(members), frozenset((members[i], members[(i + stride) % n]) for i in range(n) for stride in strides)
    )


def torus(members: Sequence[str]) -> Graph:
    """A grid as square as the number of members allows, its edges wrapped round; GraphError for a prime number."""
    n = len(members)
    rows = next(rows for rows in range(isqrt(n), 0, -1) if n % rows == 0)
    if rows == 1:
        raise GraphError(
            f"torus: {n} members make no grid with two rows; take another number, or a ring", field="members", given=n
        )
    columns = n // rows
    grid = [list(members[row * columns : (row + 1) * columns]) for row in range(rows)]
    across = [pair for row in grid for pair in _ring_pairs(row)]
    down = [pair for column in zip(*grid, strict=True) for pair in _ring_pairs(column)]
    return Graph.undirected(members, across + down)


def complete(members: Sequence[str]) -> Graph:
    """Everyone with everyone."""
    return Graph(tuple(members), frozenset((u, v) for u in members for v in members if u != v))


_FAMILIES: dict[str, Callable[[Sequence[str]], Graph]] = {
    "ring": ring,
    "ring-based": ring_based,
    "double-ring": double_ring,
    "exponential": exponential,
    "torus": torus,
    "complete": complete,
}


def family_names() -> tuple[str, ...]:
    """The families there are."""
    return tuple(_FAMILIES)


def make_graph(family: str, members: Sequence[str]) -> Graph:
    """The graph of that family; GraphError that lists the families, or says which number of members it needs."""
    if family not in _FAMILIES:
        raise GraphError(f"no graph {family!r}; there are: {', '.join(_FAMILIES)}", field="family", given=family)
    if len(members) < 2:
        raise GraphError(f"{family} needs at least 2 members, not {len(members)}", field="members", given=len(members))
    return _FAMILIES[family](members)


def _ring_pairs(members: Sequence[str]) -> list[Pair]:
    return list(zip(members, [*members[1:], members[0]], strict=True))


def _ring_based_pairs(members: Sequence[str]) -> list[Pair]:
    if len(members) % 2:
        raise GraphError(
            f"ring-based needs an even number of members, not {len(members)}: each has an opposite",
            field="members",
            given=len(members),
        )
    half = len(members) // 2
    return [*_ring_pairs(members), *zip(members[:half], members[half:], strict=True)]
