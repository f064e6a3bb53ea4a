"""MST: one spanning tree of the fastest edges."""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx

from testbed.plan import Plan, Tree
from testbed.planning.cost import best_tree
from testbed.planning.fastest import direct
from testbed.planning.policy import Policy, PolicyError, register
from testbed.planning.view import View

#: The most roots that are tried: with more members a prediction takes tens of milliseconds.
ROOTS = 64


@register("mst")
@dataclass(frozen=True)
class Mst(Policy):
    """Kruskal's minimum spanning tree (1956) of the fastest edges, used in both directions, rooted where it is shallow.

    With c the rate of an edge, an undirected edge {u, v} weighs 1 / min(c(u→v), c(v→u)), because partial sums cross it
    one way and the mean the other; among equal edges the one with the shortest round trip comes first. Only edges that
    are direct in at least one direction count. Every root loads the tree's edges alike, so the root is the member with
    the shortest predicted fill, the tree's centre in seconds. The policy does not see that edges share a physical link.
    O(n² log n) for the tree, O(n · route length) for each root; with more than ROOTS members the ROOTS nearest to the
    centre are tried.
    """

    def plan(self, view: View) -> Plan:
        """Return the spanning tree with the root that gives the shortest predicted round."""
        tree = _spanning_tree(view)
        best = best_tree(view, (_rooted(tree, root) for root in _central(tree, ROOTS)))
        assert best is not None, "the view has the tree's edges in both directions"
        return self._plan(view, [best])


def _spanning_tree(view: View) -> nx.Graph:
    edges = []
    # A route may be direct in one direction only; such a pair counts too, or the tree might not span all members.
    for source, target in sorted({(min(pair), max(pair)) for pair in direct(view, view.names)}):
        edge, back = view.edges.get((source, target)), view.edges.get((target, source))
        if edge is not None and back is not None:
            rate, rtt = min(edge.rate_bps, back.rate_bps), max(edge.rtt_s, back.rtt_s)
            edges.append((-rate, rtt, source, target))
    tree = nx.Graph()
    tree.add_nodes_from(view.names)
    joined = nx.utils.UnionFind(view.names)
    for _, rtt, source, target in sorted(edges):
        if joined[source] != joined[target]:
            joined.union(source, target)
            tree.add_edge(source, target, rtt=rtt)
    if tree.number_of_edges() != len(view.members) - 1:
        raise PolicyError("mst: the view has no edges in both directions that connect all members")
    return tree


def _central(tree: nx.Graph, most: int) -> list[str]:
    """Return the `most` members with the least round trip to the member farthest from them.

    On a tree that farthest member is one of the two that are farthest from each other.
    """
    members = list(tree)
    if len(members) <= most:
        return members

    def away(member: str) -> dict[str, float]:
        found: dict[str, float] = nx.single_source_dijkstra_path_length(tree, member, weight="rtt")
        return found

    def farthest(distances: dict[str, float]) -> str:
        return max(distances, key=distances.__getitem__)

    one = away(farthest(away(members[0])))
    other = away(farthest(one))
    return sorted(members, key=lambda member: max(one[member], other[member]))[:most]


def _rooted(tree: nx.Graph, root: str) -> Tree:
    parents = {child: parent for parent, child in nx.bfs_edges(tree, root)}
    return Tree(root, parents, parents)
