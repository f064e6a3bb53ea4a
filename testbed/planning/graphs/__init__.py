"""Communication graphs of decentralized training: families, averaging weights, bounds on the iteration gap. Pure."""

from __future__ import annotations

from testbed.planning.graphs.families import (
    FAMILIES,
    complete,
    double_ring,
    exponential,
    fast_edges,
    make_graph,
    ring,
    ring_based,
    torus,
)
from testbed.planning.graphs.gaps import GapMonitor, Violation, gap_bounds
from testbed.planning.graphs.graph import Graph, GraphError, Weighing, Weights, metropolis, spectral_gap, uniform, weigh

__all__ = [
    "FAMILIES",
    "GapMonitor",
    "Graph",
    "GraphError",
    "Violation",
    "Weighing",
    "Weights",
    "complete",
    "double_ring",
    "exponential",
    "fast_edges",
    "gap_bounds",
    "make_graph",
    "metropolis",
    "ring",
    "ring_based",
    "spectral_gap",
    "torus",
    "uniform",
    "weigh",
]
