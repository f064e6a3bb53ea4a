"""NoLoCo's members: any two may be a pair."""

from __future__ import annotations

from testbed.planning.graphs import make_graph
from testbed.schemes.assignment import GossipAssignment, Setting
from testbed.schemes.noloco import NoLoCoOptions


def assign(options: NoLoCoOptions, setting: Setting) -> GossipAssignment:
    """Every member reaches every other."""
    names = setting.view.names
    steps = dict.fromkeys(names, options.every)
    return GossipAssignment(protocol="noloco", graph=make_graph("complete", names), steps=steps)
