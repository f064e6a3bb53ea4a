"""Fastest-path trees: the cheapest ways into and out of a root at 1/c an edge."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import networkx as nx

from testbed.plan import Tree
from testbed.planning.view import View


def graph(view: View, members: Collection[str]) -> nx.DiGraph:
    """The edges of `view` among `members`, each at `cost` = seconds per bit, 1/c."""
    edges = nx.DiGraph()
    edges.add_nodes_from(name for name in view.names if name in members)
    for (source, target), edge in view.edges.items():
        if source in members and target in members:
            edges.add_edge(source, target, cost=1 / edge.rate_bps)
    return edges


def fastest_tree(edges: nx.DiGraph, root: str) -> Tree | None:
    """The shortest-path in-tree and out-tree of `root` over `edges`; None when one of them leaves a member out.

    Each member's parent is the next hop on its cheapest path to (from) the root, so both are trees. Dijkstra from
    the root, on the reversed edges for the in-tree. O(E log n).
    """
    reduce = _parents(nx.reverse_view(edges), root)
    broadcast = _parents(edges, root)
    if len(reduce) != len(edges) - 1 or len(broadcast) != len(edges) - 1:
        return None
    return Tree(root, reduce, broadcast)


def _parents(edges: nx.DiGraph, root: str) -> dict[str, str]:
    paths: Iterable[list[str]] = nx.single_source_dijkstra_path(edges, root, weight="cost").values()
    return {path[-1]: path[-2] for path in paths if len(path) > 1}
