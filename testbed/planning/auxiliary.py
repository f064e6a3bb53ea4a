"""Auxiliary routes: other paths from a member to its next hops, for what waits there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import networkx as nx

from testbed.plan import Route, Tree
from testbed.planning.view import Pair

#: More routes than a queue has chunks to spare: the release moves one at a time, from queues longer than two.
MOST = 4


def auxiliary_routes(edges: nx.DiGraph, trees: Iterable[Tree]) -> tuple[Route, ...]:
    """For each edge that `trees` use, disjoint routes beside it over `edges` at `cost`, cheapest first.

    As NetStorm has them (arXiv 2404.11352): paths by rising cost, accepted while their inner nodes are disjoint from
    those accepted before. The cheapest path disjoint from all of those is the next that such a scan would accept, so
    it is a Dijkstra search without their inner nodes. At most MOST for each edge. O(used edges · MOST · E log n).
    """
    used: set[Pair] = set()
    for tree in trees:
        used.update(tree.reduce.items())
        used.update((parent, child) for child, parent in tree.broadcast.items())
    return tuple(route for source, target in sorted(used) for route in _beside(edges, source, target))


def _beside(edges: nx.DiGraph, source: str, target: str) -> Iterator[Route]:
    taken: set[str] = set()

    def cost(u: str, v: str, data: dict[str, float]) -> float | None:
        hidden = u in taken or v in taken or (u, v) == (source, target)
        return None if hidden else data["cost"]  # None hides an edge

    for _ in range(MOST):
        try:
            path = nx.dijkstra_path(edges, source, target, weight=cost)
        except nx.NetworkXNoPath:
            return
        yield Route(source, target, tuple(path[1:-1]))
        taken.update(path[1:-1])
