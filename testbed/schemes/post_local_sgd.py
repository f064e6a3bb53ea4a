"""Post-local SGD: gradients first, while changes are large, and local SGD afterwards."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.schemes.options import LocalSteps, limited
from testbed.schemes.scheme import Scheme
from testbed.schemes.training import RoundTraining
from testbed.sync.strategies import Strategy


@dataclass(frozen=True)
class PostLocalSgdOptions(LocalSteps):
    """Options of post-local SGD."""

    among_all = True  # a gradient of the first steps that some members miss would set them apart for good

    #: The first steps, which average gradients; then `every` local steps in a round.
    start: int = limited(100, ge=1)


SCHEME = Scheme(
    name="post_local_sgd",
    options=PostLocalSgdOptions,
    exchange="all-reduce",
    planned=True,
    source="Lin et al. 2020, arXiv 1808.07217, section 3",
)


def build(options: PostLocalSgdOptions, training: RoundTraining) -> Strategy:
    """Return the strategy for a member's model."""
    from testbed.sync.strategies import PostLocalSgd

    start, every = options.start, options.every
    return PostLocalSgd(training.reducer, training.parameters, start=start, every=every, weight=training.weight)
