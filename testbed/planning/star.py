"""Star: everybody sends to one server, which sends the mean back."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.plan import Plan, Tree
from testbed.planning.cost import CostModel
from testbed.planning.policy import Policy, PolicyError, register
from testbed.planning.view import View


@register("star")
@dataclass(frozen=True)
class Star(Policy):
    """A parameter server with one key (MXNet's kvstore with S = 1; Li et al., OSDI 2014), pull overlapping push.

    parent(m) = server in both directions. Without `server`, the one whose star the cost model predicts to be
    fastest, the first in order among equals. O(n² · route length) to place the server.
    """

    server: str | None = None

    def plan(self, view: View) -> Plan:
        if self.server is not None and self.server not in view.names:
            raise PolicyError(f"star: server {self.server!r} is not a member; there are: {', '.join(view.names)}")
        model = CostModel(view)
        candidates = view.names if self.server is None else (self.server,)
        plans = [Plan(0, view.names, (star(view.names, server),)) for server in candidates]
        best = min(plans, key=lambda plan: model.predict(plan).seconds)
        if model.predict(best).seconds == float("inf"):
            raise PolicyError(f"star: {' and '.join(candidates)}: none has an edge to and from every other member")
        return self._plan(view, best.trees)


def star(members: tuple[str, ...], server: str) -> Tree:
    """The star around `server`."""
    parents = {member: server for member in members if member != server}
    return Tree(server, parents, parents)
