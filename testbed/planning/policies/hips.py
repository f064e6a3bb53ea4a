"""HiPS: a parameter server in each site, and a global one."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.plan import Group, Plan, Tree
from testbed.planning.cost import best_tree
from testbed.planning.policies.star import star
from testbed.planning.policy import Policy, PolicyError, check_whole, register
from testbed.planning.view import View


@register("hips")
@dataclass(frozen=True)
class Hips(Policy):
    """The hierarchical parameter server of GeoMX: members push to their site's server, site servers to the global one.

    A site's server is its first member; the global server is the site server whose plan has the shortest predicted
    round. Both levels are stars, so sites that are not neighbours are reached over routed paths. O(s · n), s sites.
    """

    #: HFA's K2: only every `period`-th round goes to the global server; in the others each site averages by itself.
    period: int = 1

    def __post_init__(self) -> None:
        check_whole(self, "period", self.period, least=1)

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
