"""The families of graphs on which decentralized training is compared, and graphs of a network's fast edges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from math import isqrt

import networkx as nx

from testbed.planning.graphs.graph import Graph, GraphError
from testbed.planning.view import Pair, View


def ring(members: Sequence[str]) -> Graph:
    """Return the ring: each member and the next one, in both directions."""
    return Graph.undirected(members, _ring_pairs(members))


def ring_based(members: Sequence[str]) -> Graph:
    """Return a ring with chords between opposite members (Hop, evaluation); GraphError if their number is odd."""
    return Graph.undirected(members, _ring_based_pairs(members))


def double_ring(members: Sequence[str]) -> Graph:
    """Return two ring-based graphs over half of the members each, joined twin by twin (Hop, evaluation).

    Raises GraphError unless the number of members is a multiple of 4.
    """
    if len(members) % 4:
        raise GraphError(
            f"double-ring needs a multiple of 4 members, not {len(members)}: two halves of an even number each",
            field="members",
            given=len(members),
        )
    half = len(members) // 2
    left, right = members[:half], members[half:]
    pairs = [*_ring_based_pairs(left), *_ring_based_pairs(right), *zip(left, right, strict=True)]
    return Graph.undirected(members, pairs)


def exponential(members: Sequence[str]) -> Graph:
    """Return the one-way graph in which members send to those 1, 2, 4, ... positions on: about log2(n) edges each."""
    n = len(members)
    strides = [2**power for power in range((n - 1).bit_length())]
    edges = ((members[i], members[(i + stride) % n]) for i in range(n) for stride in strides)
    return Graph(tuple(members), frozenset(edges))


def torus(members: Sequence[str]) -> Graph:
    """Return a grid as square as the number of members allows, with wrapped edges; GraphError for a prime number."""
    n = len(members)
    rows = next(rows for rows in range(isqrt(n), 0, -1) if n % rows == 0)
    if rows == 1:
        raise GraphError(
            f"torus: {n} members do not fill a grid of two rows or more; take another number of members, or a ring",
            field="members",
            given=n,
        )
    columns = n // rows
    grid = [list(members[row * columns : (row + 1) * columns]) for row in range(rows)]
    across = [pair for row in grid for pair in _ring_pairs(row)]
    down = [pair for column in zip(*grid, strict=True) for pair in _ring_pairs(column)]
    return Graph.undirected(members, across + down)


def complete(members: Sequence[str]) -> Graph:
    """Return the graph with an edge between every two members."""
    return Graph(tuple(members), frozenset((u, v) for u in members for v in members if u != v))


#: The graph families by name.
FAMILIES: dict[str, Callable[[Sequence[str]], Graph]] = {
    "ring": ring,
    "ring-based": ring_based,
    "double-ring": double_ring,
    "exponential": exponential,
    "torus": torus,
    "complete": complete,
}


def make_graph(family: str, members: Sequence[str]) -> Graph:
    """Return the graph of a family over `members` in order.

    Raises GraphError if the family is unknown (the text lists those there are), or needs another number of members.
    """
    if family not in FAMILIES:
        raise GraphError(f"no graph {family!r}; there are: {', '.join(FAMILIES)}", field="family", given=family)
    if len(members) < 2:
        raise GraphError(f"{family} needs at least 2 members, not {len(members)}", field="members", given=len(members))
    return FAMILIES[family](members)


def fast_edges(view: View, degree: int) -> Graph:
    """Return a connected graph of the fastest pairs of members of `view`, in both directions [ours].

    A pair is as fast as the slower of its two directions, because a synchronous round waits for both. Pairs are taken
    fastest first, as in Kruskal's algorithm: first the pairs that join two parts, then any pair, while both ends have
    fewer than `degree` neighbours. Parts that this limit leaves apart are joined by their fastest pair, past the limit.

    Raises GraphError if `degree` is below 2 (which joins two members only), or if the view's edges leave members apart.
    """
    if degree < 2:
        raise GraphError(
            f"degree {degree}: a connected graph needs at least 2 neighbours a member", field="degree", given=degree
        )
    pairs = _fastest_first(view)
    graph = nx.Graph()
    graph.add_nodes_from(view.names)
    _join(graph, pairs, degree)
    _join(graph, pairs, len(view.names))
    for u, v in pairs:
        if graph.degree[u] < degree and graph.degree[v] < degree:
            graph.add_edge(u, v)
    return Graph.undirected(view.names, graph.edges)


def _fastest_first(view: View) -> list[Pair]:
    def rate(pair: Pair) -> float:
        return min(view.edges[pair].rate_bps, view.edges[pair[::-1]].rate_bps)

    both_ways = [(u, v) for u, v in combinations(view.names, 2) if (u, v) in view.edges and (v, u) in view.edges]
    return sorted(both_ways, key=rate, reverse=True)


def _join(graph: nx.Graph, pairs: Iterable[Pair], degree: int) -> None:
    """Add each pair that joins two parts of `graph` and whose ends have fewer than `degree` neighbours."""
    parts = nx.utils.UnionFind(graph)
    for u, v in graph.edges:
        parts.union(u, v)
    for u, v in pairs:
        if parts[u] != parts[v] and graph.degree[u] < degree and graph.degree[v] < degree:
            graph.add_edge(u, v)
            parts.union(u, v)


def _ring_pairs(members: Sequence[str]) -> list[Pair]:
    return list(zip(members, [*members[1:], members[0]], strict=True))


def _ring_based_pairs(members: Sequence[str]) -> list[Pair]:
    if len(members) % 2:
        raise GraphError(
            f"ring-based needs an even number of members, not {len(members)}: each needs an opposite one",
            field="members",
            given=len(members),
        )
    half = len(members) // 2
    return [*_ring_pairs(members), *zip(members[:half], members[half:], strict=True)]
