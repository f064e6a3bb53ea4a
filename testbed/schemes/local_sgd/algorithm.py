"""Local SGD around a loop's steps."""

from __future__ import annotations

from testbed.schemes.steps import LocalSteps
from testbed.schemes.training import RoundTraining
from testbed.sync.strategies import LocalSgd, Strategy


def build(options: LocalSteps, training: RoundTraining) -> Strategy:
    """The strategy for a member's model."""
    return LocalSgd(training.reducer, training.parameters, every=options.every, weight=training.weight)
