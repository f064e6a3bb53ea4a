"""The trees of a plan with groups: rings inside the groups, and the trees along which all groups exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from testbed.plan import Group, Plan, Tree
from testbed.planning.cost import CostModel
from testbed.planning.fastest import fastest_tree, graph
from testbed.planning.policies.blueconnect import nested_rings
from testbed.planning.policies.cpn.terms import Spatial
from testbed.planning.policies.packing import Packing
from testbed.planning.policies.ring import ring_trees
from testbed.planning.policy import PolicyError, check_edges
from testbed.planning.view import View


def trees_among(view: View, spatial: Spatial, rings: Sequence[tuple[str, ...]], leaders: Sequence[str]) -> list[Tree]:
    """Return the trees along which the groups, each a ring with a leader, exchange.

    If the edges that `spatial` needs are missing, the groups exchange along one tree of the leaders.

    Raises:
        PolicyError: The view has no such tree either.
    """
    if spatial == "sharded":
        sharded = nested_rings(view, rings, "two-opt")
        if all((u, v) in view.edges for u, v, _ in Group(view.names, tuple(sharded)).edges()):
            return sharded
    local = {m: leader for ring, leader in zip(rings, leaders, strict=True) for m in ring if m != leader}
    if spatial == "spread" and (spread := _spread(view, leaders, local)):
        return spread
    return [_best_root(view, leaders, local)]


def ring_within(view: View, members: Sequence[str]) -> Sequence[Tree]:
    """Return the trees of a ring around `members`. Raises PolicyError if the view lacks one of its edges."""
    trees = ring_trees(members)
    check_edges("cpn", view, Group(tuple(members), tuple(trees)))
    return trees


def _spread(view: View, leaders: Sequence[str], local: Mapping[str, str]) -> list[Tree]:
    """Return trees packed into the links between the leaders, each with all members; none if edges are missing."""
    try:
        packed = Packing().plan(view.among(leaders)).trees
    except PolicyError:
        return []
    whole = [replace(t, reduce={**local, **t.reduce}, broadcast={**local, **t.broadcast}) for t in packed]
    return whole if all(_is_edge(view, *pair) for pair in local.items()) else []


def _best_root(view: View, leaders: Sequence[str], local: Mapping[str, str]) -> Tree:
    """Return the leaders' fastest-path tree with the best prediction, or all members' if the leaders lack edges."""
    model = CostModel(view)
    for among, below in ((leaders, local), (view.names, {})):
        edges = graph(view, set(among))
        found = [tree for root in among if (tree := fastest_tree(edges, root)) is not None]
        whole = [Tree(t.root, {**below, **t.reduce}, {**below, **t.broadcast}) for t in found]
        linked = [tree for tree in whole if all(_is_edge(view, *pair) for pair in tree.reduce.items())]
        if linked:
            return min(linked, key=lambda tree: model.predict(Plan(0, view.names, (tree,))).seconds)
    raise PolicyError("cpn: the view has no edges that connect all members")


def _is_edge(view: View, child: str, parent: str) -> bool:
    return (child, parent) in view.edges and (parent, child) in view.edges
