"""Local SGD: members take steps of their own, and then go on from the mean of where they are."""

from __future__ import annotations

from testbed.schemes.scheme import Scheme
from testbed.schemes.steps import LocalSteps

SCHEME = Scheme(
    name="local_sgd",
    options=LocalSteps,
    exchange="all-reduce",
    planned=True,
    elastic=True,
    source="Stich 2019, arXiv 1805.09767",
)
