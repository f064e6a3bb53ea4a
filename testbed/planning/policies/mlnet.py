"""MLNET: one balanced tree in member order."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.plan import Plan, Tree
from testbed.planning.policy import Policy, check_member, check_whole, register
from testbed.planning.view import View


@register("mlnet")
@dataclass(frozen=True)
class Mlnet(Policy):
    """MLNET's balanced k-ary aggregation and multicast tree (Mai, Hong and Costa, HotCloud 2015), blind to bandwidth.

    In member order, parent(i) = (i − 1) div k, in both directions. O(n).
    """

    #: The children of each member (k); the paper studies 2, 3 and 5.
    arity: int = 2
    #: The member at which the order begins; by default the first.
    root: str | None = None

    def __post_init__(self) -> None:
        check_whole(self, "arity", self.arity, least=1)

    def plan(self, view: View) -> Plan:
        """Return the balanced tree in member order from the option `root` on."""
        names = view.names
        if self.root is not None:
            check_member(self, "root", self.root, view)
            first = names.index(self.root)
            names = names[first:] + names[:first]
        parents = {names[i]: names[(i - 1) // self.arity] for i in range(1, len(names))}
        return self._plan(view, [Tree(names[0], parents, parents)])
