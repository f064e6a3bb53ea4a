"""BlueConnect: reduce-scatter within the sites, then across them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from testbed.plan import Plan, Tree
from testbed.planning.policies.ring import ORDERS, ordered, ring_trees
from testbed.planning.policy import Policy, check_choice, register
from testbed.planning.view import View


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
