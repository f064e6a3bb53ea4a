"""Sites as groups: most rounds stay inside the sites, and the wide area is crossed in every few only."""

from __future__ import annotations

from dataclasses import replace

from testbed.plan import Group, Plan, Tree
from testbed.planning.fastest import fastest_tree, graph
from testbed.planning.policy import PolicyError
from testbed.planning.view import View


def with_site_groups(plan: Plan, view: View, period: int) -> Plan:
    """The plan with each site's members as a group, among which all rounds are but every `period`-th.

    A group reduces over fastest-path trees from each of its members, with equal shares of the model: inside a LAN
    every edge is as fast, so all members' ports are used alike. PolicyError when a site's members have no edges
    among each other. As it is where there is one site only: then all rounds are among all.
    """
    sites = view.sites()
    if len(sites) == 1:
        return plan
    groups = tuple(Group(tuple(members), _trees(view, site, tuple(members))) for site, members in sites.items())
    return replace(plan, groups=groups, period=period)


def _trees(view: View, site: str, members: tuple[str, ...]) -> tuple[Tree, ...]:
    inside = graph(view, set(members))
    trees = [fastest_tree(inside, root) for root in members]
    found = [replace(tree, share=1 / len(members)) for tree in trees if tree is not None]
    if len(found) < len(members):
        raise PolicyError(
            f"site {site}: its members {', '.join(members)} are not connected by edges",
            rule="not-connected",
            given=tuple(members),
        )
    return tuple(found)
