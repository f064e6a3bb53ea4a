"""AD-PSGD's members: active ones on one side of the graph, passive ones on the other."""

from __future__ import annotations

from testbed.schemes.assignment import GossipAssignment, Setting, graph_of
from testbed.schemes.options import InGraph


def assign(options: InGraph, setting: Setting) -> GossipAssignment:
    """GraphError when the workers make no such graph, or one without two sides."""
    graph = graph_of(options, setting)
    active, _ = graph.sides()
    own = {member: {"active": member in active} for member in graph.members}
    return GossipAssignment(protocol="adpsgd", graph=graph, own=own)
