"""NetStorm: the model shared over the fastest aggregation path trees of several roots."""

from __future__ import annotations

from dataclasses import dataclass, replace

from testbed.plan import Plan, Tree, depth
from testbed.planning.fastest import auxiliary_routes, fastest_tree, graph
from testbed.planning.policy import Policy, PolicyError, check_switch, check_whole, register
from testbed.planning.view import View


@register("netstorm")
@dataclass(frozen=True)
class Netstorm(Policy):
    """Multi-root FAPT (NetStorm, arXiv 2404.11352): one tree for each root, shares by score.

    A root's reduce (broadcast) tree is the shortest-path in-tree (out-tree) over the direct edges, where an edge of
    rate c costs 1/c. A tree's score is 1 / Σ_level (1 / min c over its edges at that level); the level is the number of
    hops from the root. A root's score is 1 / (1/s_reduce + 1/s_broadcast), s the scores of its two trees, since both
    have one slice [ours: NetStorm's released code scores push and pull apart]. The best roots get contiguous slices in
    proportion to their scores. O(n · E log n), with auxiliary routes O(n² · E log n).
    """

    #: How many of the best roots get a slice; by default all.
    roots: int | None = None
    #: Whether every edge in use has routes beside it, disjoint from each other.
    auxiliary: bool = True

    def __post_init__(self) -> None:
        if self.roots is not None:
            check_whole(self, "roots", self.roots, least=1)
        check_switch(self, "auxiliary", self.auxiliary)

    def plan(self, view: View) -> Plan:
        """Return the trees of the best roots, with shares by score, and the routes beside them."""
        edges = graph(view, set(view.names))
        trees = [tree for root in view.names if (tree := fastest_tree(edges, root)) is not None]
        if not trees:
            raise PolicyError("netstorm: the view has no member with paths of direct edges to and from all others")
        if len(view.names) == 1:
            return self._plan(view, trees)
        scores = {tree.root: 1 / (_levels(view, tree, up=True) + _levels(view, tree, up=False)) for tree in trees}
        best = sorted(trees, key=lambda tree: -scores[tree.root])[: self.roots]
        total = sum(scores[tree.root] for tree in best)
        shared = [replace(tree, share=scores[tree.root] / total) for tree in best]
        return self._plan(view, shared, auxiliary=auxiliary_routes(edges, shared) if self.auxiliary else ())


def _levels(view: View, tree: Tree, up: bool) -> float:
    """Return Σ over levels of 1 / the slowest edge's rate, for the reduce (`up`) or the broadcast tree."""
    parents = tree.reduce if up else tree.broadcast
    slowest: dict[int, float] = {}
    for child, parent in parents.items():
        level = depth(child, parents)
        rate = view.edges[(child, parent) if up else (parent, child)].rate_bps
        slowest[level] = min(slowest.get(level, rate), rate)
    return sum(1 / rate for rate in slowest.values())
