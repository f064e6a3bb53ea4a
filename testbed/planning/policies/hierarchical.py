"""Hierarchical, and HiPS: reduce inside each site first, then between sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from testbed.plan import Group, Plan, Tree
from testbed.planning.cost import best_tree
from testbed.planning.fastest import fastest_tree, graph
from testbed.planning.policies.star import star
from testbed.planning.policy import Policy, PolicyError, check_whole, register
from testbed.planning.view import View


@register("hierarchical")
@dataclass(frozen=True)
class Hierarchical(Policy):
    """Two levels, as in HiPS, by a rule of our own: members send to their site's gateway, gateways to one root gateway.

    A site's gateway is the member with the largest Σ over members elsewhere of min(c out, c in), with c the rates of
    the edges; the first one among equals. Gateways reach the root along their fastest paths over gateways (an edge
    costs 1/c), around slow direct edges. The root is the gateway whose plan has the shortest predicted round. The model
    crosses a site's uplink once, whatever the number of its members. O(n² + s² · (s log s + route length)), s sites.
    """

    def plan(self, view: View) -> Plan:
        """Return the tree over the sites' gateways whose root gives the shortest predicted round."""
        sites = view.sites()
        gateways = {site: _gateway(view, members) for site, members in sites.items()}
        between = graph(view, set(gateways.values()))
        local = {
            member: gateways[site] for site, members in sites.items() for member in members if member != gateways[site]
        }
        found = [tree for root in gateways.values() if (tree := fastest_tree(between, root)) is not None]
        whole = (Tree(tree.root, {**local, **tree.reduce}, {**local, **tree.broadcast}) for tree in found)
        if (best := best_tree(view, whole)) is None:
            raise PolicyError(
                "hierarchical: the view has no edges that connect the sites' gateways, or a gateway with its site"
            )
        return self._plan(view, [best])


def _gateway(view: View, members: Sequence[str]) -> str:
    def reach(name: str) -> float:
        outside = [other for other in view.names if other not in members]
        both = [(view.edges.get((name, other)), view.edges.get((other, name))) for other in outside]
        return sum(min(out.rate_bps, back.rate_bps) for out, back in both if out and back)

    return max(members, key=reach)


@register("hips")
@dataclass(frozen=True)
class Hips(Policy):
    """GeoMX's HiPS, by our reading: members push to their site's server, site servers to the global one.

    A site's server is its first member; the global server is the site server whose plan has the shortest predicted
    round. Both levels are stars, so sites that are not neighbours are reached over routed paths. O(s · n), s sites.
    """

    #: HFA's K2: only every `period`-th round goes to the global server; in the others each site averages by itself.
    period: int = 1

    def __post_init__(self) -> None:
        check_whole(self, "period", self.period, least=1)

    @property
    def makes_groups(self) -> bool:
        """True if not every round is global."""
        return self.period > 1

    def plan(self, view: View) -> Plan:
        """Return two levels of stars, with the global server that gives the shortest predicted round."""
        sites = view.sites()
        local = {member: members[0] for members in sites.values() for member in members[1:]}
        servers = tuple(members[0] for members in sites.values())
        parents = {server: {**local, **star(servers, server).reduce} for server in servers}
        best = best_tree(view, (Tree(server, parents[server], parents[server]) for server in servers))
        if best is None:
            raise PolicyError(
                "hips: the view has no edges that connect a site, or a site's server with all other servers"
            )
        if self.period == 1:
            return self._plan(view, [best])
        groups = tuple(Group(members, (star(members, members[0]),)) for members in sites.values())
        return self._plan(view, [best], groups=groups, period=self.period)
