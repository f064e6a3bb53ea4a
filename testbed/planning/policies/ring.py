"""Ring all-reduce: slices travel around a ring of all members, or (BlueConnect) inside sites and then across them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from testbed.plan import Plan, Tree
from testbed.planning.policy import Policy, check_choice, register
from testbed.planning.view import View

#: The orders that a ring's members may have; see `Ring`.
ORDERS = ("naive", "nearest", "two-opt")


@register("ring")
@dataclass(frozen=True)
class Ring(Policy):
    """Reduce-scatter and all-gather around a ring (Patarasuk and Yuan, JPDC 2009): 2(n − 1) steps of 1/n of the model.

    As trees, slice i travels around the ring to its root, member i, and from there around again, so each edge of the
    ring carries 2(n − 1)/n of the model. O(n²) for the order `nearest`, O(n³) a pass for `two-opt`.
    """

    #: `naive`: the members' own order. `nearest`: the fastest edge from each member leads to the next one. `two-opt`:
    #: the order `nearest`, improved by reversing parts of the ring while that makes its slowest edge faster, or leaves
    #: it as slow and reduces Σ 1/c.
    order: str = "two-opt"

    def __post_init__(self) -> None:
        check_choice(self, "order", self.order, ORDERS)

    def plan(self, view: View) -> Plan:
        """Return the ring in the order that the option `order` names."""
        return self._plan(view, ring_trees(ordered(view, view.names, self.order)))


def ring_trees(names: Sequence[str]) -> list[Tree]:
    """Return a tree for each slice: the chain around the ring to its root, and the chain from there around again."""
    count = len(names)
    trees = []
    for root in range(count):
        around = [names[(root + 1 + i) % count] for i in range(count)]
        reduce = dict(pairwise(around))
        onward = [names[(root + i) % count] for i in range(count)]
        broadcast = {child: parent for parent, child in pairwise(onward)}
        trees.append(Tree(names[root], reduce, broadcast, 1 / count))
    return trees


def ordered(view: View, names: Sequence[str], order: str) -> tuple[str, ...]:
    """Return the members of a ring in the named `order`, one of ORDERS. The ring's edges may be missing in the view."""
    if order == "naive" or len(names) < 3:
        return tuple(names)
    costs = np.full((len(names), len(names)), np.inf)
    for i, source in enumerate(names):
        for j, target in enumerate(names):
            if (source, target) in view.edges:
                costs[i, j] = 1 / view.edges[source, target].rate_bps
    tour = _nearest(costs)
    if order == "two-opt":
        tour = _two_opt(costs, tour)
    return tuple(names[i] for i in tour)


def _nearest(costs: NDArray[np.float64]) -> list[int]:
    tour, left = [0], set(range(1, len(costs)))
    while left:
        tour.append(min(sorted(left), key=lambda member: costs[tour[-1], member]))
        left.remove(tour[-1])
    return tour


def _two_opt(costs: NDArray[np.float64], tour: list[int]) -> list[int]:
    """Reverse the part that improves the ring most, until none does: by (slowest edge's cost, sum of costs)."""

    def weight(tour: list[int]) -> tuple[float, float]:
        around = costs[tour, np.roll(tour, -1)]
        return float(around.max()), float(around.sum())

    best = weight(tour)
    # A turn replaces two edges, so a ring that lacks more than two keeps lacking one.
    if np.isinf(costs[tour, np.roll(tour, -1)]).sum() > 2:
        return tour
    while True:
        turns = ((i, j) for i in range(1, len(tour) - 1) for j in range(i + 2, len(tour) + 1))
        turned = ((weight(other := tour[:i] + tour[i:j][::-1] + tour[j:]), other) for i, j in turns)
        least, shorter = min(turned, key=itemgetter(0), default=(best, tour))
        if least >= best:
            return tour
        tour, best = shorter, least


@register("blueconnect")
@dataclass(frozen=True)
class BlueConnect(Policy):
    """Nested rings (Cho et al., BlueConnect, MLSys 2019): from the fast dimension to the slow one, and back.

    Let m be the number of members of the largest site. Slice j of m is reduced around each site's ring to its j-th
    member; a ring of these members, one of each site, reduces it among the sites; the mean goes back the same way. So
    the WAN carries M/m for each member of a site. In a site with fewer than m members some take several slices.
    O(m · s · n) for the trees, s sites.
    """

    #: The order of the ring of sites; see `ring`.
    order: str = "two-opt"

    def __post_init__(self) -> None:
        check_choice(self, "order", self.order, ORDERS)

    def plan(self, view: View) -> Plan:
        """Return rings inside the sites, and rings of one member of each site."""
        return self._plan(view, nested_rings(view, list(view.sites().values()), self.order))


def nested_rings(view: View, groups: Sequence[tuple[str, ...]], order: str) -> list[Tree]:
    """Return the trees of rings inside `groups` and of the rings among them, which have the named `order`."""
    slices = max(len(members) for members in groups)
    trees: list[Tree] = []
    for j in range(slices):
        leads = {members[j % len(members)]: members for members in groups}
        local = [ring_trees(members)[members.index(lead)] for lead, members in leads.items()]
        for across in ring_trees(ordered(view, tuple(leads), order)):
            reduce, broadcast = dict(across.reduce), dict(across.broadcast)
            for tree in local:
                reduce.update(tree.reduce)
                broadcast.update(tree.broadcast)
            trees.append(replace(across, reduce=reduce, broadcast=broadcast, share=across.share / slices))
    return trees
