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

    With m the members of the largest site, slice j of m is reduced around each site's ring to its j-th member, and a
    ring of those, one a site, reduces it among the sites; then all the way back. So the WAN carries M/m for each
    member of a site. A site with fewer than m members has some of them take several slices. `order` is that of the
    ring of sites. O(m · s · n) for the trees, s sites.
    """

    order: str = "two-opt"

    def __post_init__(self) -> None:
        check_choice(self, "order", self.order, ORDERS)

    def plan(self, view: View) -> Plan:
        return self._plan(view, nested_rings(view, list(view.sites().values()), self.order))


def nested_rings(view: View, groups: Sequence[tuple[str, ...]], order: str) -> list[Tree]:
    """The trees of rings inside `groups` and among them; `order` is that of the rings among."""
    slices = max(len(members) for members in groups)
    trees: list[Tree] = []
    for j in range(slices):
        leads = {members[j % len(members)]: members for members in groups}
        local = [_to(members, lead) for lead, members in leads.items()]
        for across in ring_trees(ordered(view, tuple(leads), order)):
            reduce, broadcast = dict(across.reduce), dict(across.broadcast)
            for tree in local:
                reduce.update(tree.reduce)
                broadcast.update(tree.broadcast)
            trees.append(replace(across, reduce=reduce, broadcast=broadcast, share=across.share / slices))
    return trees


def _to(members: tuple[str, ...], lead: str) -> Tree:
    """The tree of a site's ring whose root is `lead`."""
    return ring_trees(members)[members.index(lead)]
