"""AD-PSGD: a local step on the side, while the model is averaged with one random neighbour."""

from __future__ import annotations

from testbed.schemes.options import InGraph
from testbed.schemes.scheme import Scheme

SCHEME = Scheme(
    name="adpsgd",
    options=InGraph,
    exchange="gossip",
    planned=False,
    synchronous=False,
    alike=False,
    source="Lian et al. 2018, arXiv 1710.06952",
)
