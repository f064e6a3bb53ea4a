"""Decoupled DiLoCo's members and their syncer, which lives with the member that the others reach best."""

from __future__ import annotations

from testbed.planning import make_policy
from testbed.planning.graphs import Graph
from testbed.schemes.assignment import GossipAssignment, Setting
from testbed.schemes.decoupled_diloco import DecoupledOptions


def assign(options: DecoupledOptions, setting: Setting) -> GossipAssignment:
    """PolicyError when no member can be reached by all."""
    names = setting.view.names
    (syncer,) = {tree.root for tree in make_policy("star").plan(setting.view).trees}
    return GossipAssignment(
        protocol="decoupled_diloco",
        graph=Graph.undirected(names, [(name, syncer) for name in names if name != syncer]),
        rules={"syncer": syncer, "codec": options.codec},
        steps=dict.fromkeys(names, options.every),
        evaluators={syncer: (1, 0)},
    )
