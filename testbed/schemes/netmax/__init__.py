"""NetMax: each member pulls from one peer at a time, from fast ones more often."""

from __future__ import annotations

from testbed.schemes.options import InGraph
from testbed.schemes.scheme import Scheme

SCHEME = Scheme(
    name="netmax",
    options=InGraph,
    exchange="gossip",
    planned=False,
    synchronous=False,
    alike=False,
    source="Zhou et al. 2021, ICDE",
)
