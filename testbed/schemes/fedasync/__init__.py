"""FedAsync: a server takes in each member's model as it comes, the less the older it is."""

from __future__ import annotations

from testbed.schemes.scheme import Scheme
from testbed.schemes.steps import LocalSteps

SCHEME = Scheme(
    name="fedasync",
    options=LocalSteps,
    exchange="gossip",
    planned=False,
    synchronous=False,
    alike=False,
    source="Xie et al. 2019, arXiv 1903.03934",
)
