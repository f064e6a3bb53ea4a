"""Stochastic gradient push: averaging over any directed graph, by sending shares that carry mass."""

from __future__ import annotations

from testbed.schemes.options import InGraph
from testbed.schemes.scheme import Scheme

SCHEME = Scheme(
    name="sgp",
    options=InGraph,
    exchange="gossip",
    planned=False,
    alike=False,
    source="Assran et al. 2019, arXiv 1811.10792",
)
