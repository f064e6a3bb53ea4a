"""Fastest-path trees: the cheapest paths into and out of a root at 1/c an edge."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import networkx as nx

from testbed.plan import Tree
from testbed.planning.view import Pair, View


def graph(view: View, members: Collection[str]) -> nx.DiGraph:
    """The direct edges of `view` among `members`, each at `cost` = seconds per bit, 1/c."""
    edges = nx.DiGraph()
    edges.add_nodes_from(name for name in view.names if name in members)
    for source, target in direct(view, members):
        edges.add_edge(source, target, cost=1 / view.edges[source, target].rate_bps)
    return edges


def direct(view: View, members: Collection[str]) -> list[Pair]:
    """The edges among `members` whose route, where it is known, passes no other site of theirs.

    An edge that does looks as fast as its slowest link, but shares its links with the edges it is made of; a relay on
    the way would add up what crosses it. Systems that know edges by their rate alone are given these only, as the
    overlay of their evaluations is. O(edges · route length).
    """
    site = {member.name: member.site for member in view.members}
    wide: dict[Pair, tuple[str, ...]] = {}  # the links between sites, by sites
    for (source, target), route in view.routes.items():
        if source in members and target in members and site[source] != site[target]:
            wide[site[source], site[target]] = route[1:-1]
    known = set(wide.values())
    return [
        (source, target)
        for source, target in view.edges
        if source in members and target in members and not _passes(wide.get((site[source], site[target]), ()), known)
    ]


def _passes(route: tuple[str, ...], known: set[tuple[str, ...]]) -> bool:
    """Whether a route begins or ends with another one.

    It does when it passes another site, for routers forward by destination (or search from the source); of several
    shortest ways the other part may differ.
    """
    return any(route[:cut] in known or route[cut:] in known for cut in range(1, len(route)))


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
