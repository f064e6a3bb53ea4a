"""D-PSGD's members in their graph: they run Hop in its standard mode."""

from __future__ import annotations

from testbed.schemes.assignment import GossipAssignment, Setting, graph_of
from testbed.schemes.dpsgd import DpsgdOptions


def assign(options: DpsgdOptions, setting: Setting) -> GossipAssignment:
    """GraphError when the workers make no such graph."""
    return GossipAssignment(
        protocol="hop",
        graph=graph_of(options, setting),
        weighing=options.weights or "metropolis",
        rules={"parallel": options.form == "parallel"},
    )
