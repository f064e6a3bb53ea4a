"""Post-local SGD around a loop's steps."""

from __future__ import annotations

from testbed.schemes.post_local_sgd import PostLocalSgdOptions
from testbed.schemes.training import RoundTraining
from testbed.sync.strategies import PostLocalSgd, Strategy


def build(options: PostLocalSgdOptions, training: RoundTraining) -> Strategy:
    """The strategy for a member's model."""
    start, every = options.start, options.every
    return PostLocalSgd(training.reducer, training.parameters, start=start, every=every, weight=training.weight)
