"""Fastest paths, where an edge of rate c costs 1/c: trees of a root, auxiliary routes beside edges, groups of sites."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

import networkx as nx

from testbed.plan import Group, Plan, Route, Tree
from testbed.planning.policy import PolicyError
from testbed.planning.view import Pair, View

#: Auxiliary routes for an edge at most. A queue seldom has chunks for more: NetStorm's released code moves one chunk
#: at a time, from queues longer than two.
MOST_ROUTES = 4


def graph(view: View, members: Collection[str]) -> nx.DiGraph:
    """Return the direct edges of `view` among `members`, each with its `cost` 1/c in seconds per bit."""
    edges = nx.DiGraph()
    edges.add_nodes_from(name for name in view.names if name in members)
    for source, target in direct(view, members):
        edges.add_edge(source, target, cost=1 / view.edges[source, target].rate_bps)
    return edges


def direct(view: View, members: Collection[str]) -> list[Pair]:
    """Return the edges among `members` whose route, where it is known, passes no other site of `members`.

    An edge that passes a site looks as fast as its slowest link, but shares its links with the edges that it consists
    of, while a relay at that site could add up the sums that cross it. Policies that know edges by their rates alone
    therefore get direct edges only, as the overlays have in the papers' evaluations. O(edges · route length).
    """
    site = {member.name: member.site for member in view.members}
    wide: dict[Pair, tuple[str, ...]] = {}  # pair of sites → the links between them
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
    """Return whether a route passes a third site, which shows by a `known` route at its begin or at its end.

    Routers forward by destination, or routes are searched from the source; among several shortest paths the rest of
    the route may differ.
    """
    return any(route[:cut] in known or route[cut:] in known for cut in range(1, len(route)))


def fastest_tree(edges: nx.DiGraph, root: str) -> Tree | None:
    """Return the shortest-path in-tree and out-tree of `root` over `edges`; None if one leaves a member out.

    Each member's parent is the next hop on its cheapest path to (from) the root, so both are trees. Dijkstra's search
    runs from the root, for the in-tree on the reversed edges. O(E log n).
    """
    reduce = _parents(nx.reverse_view(edges), root)
    broadcast = _parents(edges, root)
    if len(reduce) != len(edges) - 1 or len(broadcast) != len(edges) - 1:
        return None
    return Tree(root, reduce, broadcast)


def _parents(edges: nx.DiGraph, root: str) -> dict[str, str]:
    paths: Iterable[list[str]] = nx.single_source_dijkstra_path(edges, root, weight="cost").values()
    return {path[-1]: path[-2] for path in paths if len(path) > 1}


def auxiliary_routes(edges: nx.DiGraph, trees: Iterable[Tree]) -> tuple[Route, ...]:
    """Return at most MOST_ROUTES routes over `edges` beside each edge that `trees` use, cheapest first.

    The routes beside one edge share no inner node.

    NetStorm (arXiv 2404.11352) scans paths by rising cost and accepts those whose inner nodes are disjoint from the
    inner nodes accepted before. The next path that such a scan accepts is the cheapest one that avoids those nodes, so
    each is found by one Dijkstra search. O(used edges · MOST_ROUTES · E log n).
    """
    used: set[Pair] = set()
    for tree in trees:
        used.update(tree.reduce.items())
        used.update((parent, child) for child, parent in tree.broadcast.items())
    return tuple(route for source, target in sorted(used) for route in _routes_beside(edges, source, target))


def _routes_beside(edges: nx.DiGraph, source: str, target: str) -> Iterator[Route]:
    taken: set[str] = set()

    def cost(u: str, v: str, data: dict[str, float]) -> float | None:
        hidden = u in taken or v in taken or (u, v) == (source, target)
        return None if hidden else data["cost"]  # None hides an edge

    for _ in range(MOST_ROUTES):
        try:
            path = nx.dijkstra_path(edges, source, target, weight=cost)
        except nx.NetworkXNoPath:
            return
        yield Route(source, target, tuple(path[1:-1]))
        taken.update(path[1:-1])


def with_site_groups(plan: Plan, view: View, period: int) -> Plan:
    """Return the plan with each site's members as a group, which reduces by itself in all but every `period`-th round.

    A group reduces over fastest-path trees from each of its members, with equal shares of the model: inside a LAN all
    edges are equally fast, so all members' ports are used alike. A plan of one site is returned unchanged. Raises
    PolicyError if no edges connect the members of a site among each other.
    """
    sites = view.sites()
    if len(sites) == 1:
        return plan
    groups = tuple(Group(members, _site_trees(view, site, members)) for site, members in sites.items())
    return replace(plan, groups=groups, period=period)


def _site_trees(view: View, site: str, members: tuple[str, ...]) -> tuple[Tree, ...]:
    inside = graph(view, set(members))
    trees = [fastest_tree(inside, root) for root in members]
    found = [replace(tree, share=1 / len(members)) for tree in trees if tree is not None]
    if len(found) < len(members):
        raise PolicyError(
            f"site {site}: no edges connect its members {', '.join(members)} with each other; a period above 1 needs "
            "them",
            rule="not-connected",
            given=members,
        )
    return tuple(found)
