"""FedAsync: a server takes in each member's model as it comes, the less the older it is."""

from __future__ import annotations

from testbed.schemes.options import LocalSteps
from testbed.schemes.scheme import Scheme

SCHEME = Scheme(
    name="fedasync",
    options=LocalSteps,
    exchange="gossip",
    planned=False,
    synchronous=False,
    alike=False,
    source="Xie et al. 2019, arXiv 1903.03934",
)
