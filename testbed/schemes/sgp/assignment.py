"""The members of stochastic gradient push in their graph."""

from __future__ import annotations

from testbed.schemes.assignment import GossipAssignment, Setting, graph_of
from testbed.schemes.options import InGraph


def assign(options: InGraph, setting: Setting) -> GossipAssignment:
    """GraphError when the workers make no such graph."""
    return GossipAssignment(protocol="sgp", graph=graph_of(options, setting))
