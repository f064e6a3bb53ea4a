"""Local SGD: members take local steps, and then go on from the mean of their parameters."""

from __future__ import annotations

from math import log

from testbed.plan import SchemeTraits
from testbed.schemes.options import LocalSteps
from testbed.schemes.scheme import STEPS, Scheme
from testbed.schemes.training import RoundTraining
from testbed.sync.strategies import Strategy

SCHEME = Scheme(
    name="local_sgd",
    options=LocalSteps,
    exchange="all-reduce",
    planned=True,
    elastic=True,
    traits=SchemeTraits(steps=STEPS, worth=(0.0, 0.1), normalized=(log(0.6), 0.3), plain_mean=True),
    source="Stich 2019, arXiv 1805.09767",
)


def build(options: LocalSteps, training: RoundTraining) -> Strategy:
    """Return the strategy for a member's model."""
    from testbed.sync.strategies import LocalSgd

    return LocalSgd(training.reducer, training.parameters, every=options.every, weight=training.weight)
