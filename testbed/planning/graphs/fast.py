"""A communication graph made of a network's fast edges."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import networkx as nx

from testbed.planning.graphs.graph import Graph, GraphError
from testbed.planning.view import Pair, View


def fast_edges(view: View, degree: int) -> Graph:
    """The fastest pairs of members of `view` that make a connected graph, both ways, [ours].

    A pair is as fast as the slower of its two directions: a synchronous round waits for both. Pairs are taken
    fastest first, as Kruskal does: first those that join two parts, then any, while both ends have fewer than
    `degree` neighbours. Parts left apart by that limit are joined by their fastest pair, past the limit.

    Raises GraphError when degree < 2 (a tree of degree 1 joins two members only) or when the edges of the view
    leave members apart.
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
    """Adds each pair that joins two parts of `graph` and whose ends have fewer than `degree` neighbours."""
    parts = nx.utils.UnionFind(graph)
    for u, v in graph.edges:
        parts.union(u, v)
    for u, v in pairs:
        if parts[u] != parts[v] and graph.degree[u] < degree and graph.degree[v] < degree:
            graph.add_edge(u, v)
            parts.union(u, v)
