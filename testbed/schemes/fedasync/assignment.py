"""FedAsync's members and their server, which lives with the member that the others reach best."""

from __future__ import annotations

from testbed.planning import make_policy
from testbed.planning.graphs import Graph
from testbed.schemes.assignment import GossipAssignment, Setting
from testbed.schemes.options import LocalSteps


def assign(options: LocalSteps, setting: Setting) -> GossipAssignment:
    """PolicyError when no member can be reached by all."""
    names = setting.view.names
    (server,) = {tree.root for tree in make_policy("star").plan(setting.view).trees}
    graph = Graph.undirected(names, [(name, server) for name in names if name != server])
    return GossipAssignment(
        protocol="fedasync",
        graph=graph,
        rules={"server": server},
        steps=dict.fromkeys(names, options.every),
        evaluators={names[0]: (1, 0)},
    )
