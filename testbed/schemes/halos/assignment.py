"""HALoS' workers, the servers of their sites, and the server of all, in the site that all reach best."""

from __future__ import annotations

from testbed.planning import make_policy
from testbed.planning.graphs import Graph
from testbed.schemes.assignment import GossipAssignment, Setting, sites_of, steps_of
from testbed.schemes.halos import HalosOptions


def assign(options: HalosOptions, setting: Setting) -> GossipAssignment:
    """PolicyError when no member can be reached by all."""
    members = setting.view.members
    servers = {worker: first for first, others in sites_of(setting.view).items() for worker in (first, *others)}
    (best,) = {tree.root for tree in make_policy("star").plan(setting.view).trees}
    centre = servers[best]
    pairs = [*servers.items(), *((server, centre) for server in set(servers.values()))]
    return GossipAssignment(
        protocol="halos",
        graph=Graph.undirected(setting.view.names, [(one, other) for one, other in pairs if one != other]),
        rules={"centre": centre, "codec": options.codec, "sites": sorted({*servers.values()} - {centre})},
        own={worker: {"server": server} for worker, server in servers.items()},
        steps=dict(zip(setting.view.names, steps_of(members, options.every), strict=True)),
        evaluators={members[0].name: (1, 0)},
    )
