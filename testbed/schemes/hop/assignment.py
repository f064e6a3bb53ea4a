"""Hop's members in their graph; between sites, the first worker of each stands for it."""

from __future__ import annotations

from testbed.schemes.assignment import GossipAssignment, Setting, graph_of, sites_of
from testbed.schemes.hop import HopOptions


def assign(options: HopOptions, setting: Setting) -> GossipAssignment:
    """GraphError when the workers make no such graph."""
    sites = sites_of(setting.view) if options.between == "sites" else {}
    return GossipAssignment(
        protocol="hop",
        graph=graph_of(options, setting, tuple(sites)),
        sites=sites,
        weighing=options.weights or "uniform",
        rules={
            "max_ig": options.max_ig,
            "backup": options.backup,
            "staleness": options.staleness,
            "max_jump": options.skip.jump if options.skip else 1,
            "quantile": options.skip.quantile if options.skip else 0.0,
            "notify_ack": options.mode == "notify_ack",
            "parallel": options.form == "parallel",
        },
    )
