"""Hierarchical local SGD around a loop's steps: the plan says which rounds are among all."""

from __future__ import annotations

from testbed.schemes.hierarchical import HierarchicalOptions
from testbed.schemes.training import RoundTraining
from testbed.sync.strategies import LocalSgd, Strategy


def build(options: HierarchicalOptions, training: RoundTraining) -> Strategy:
    """The strategy for a member's model."""
    return LocalSgd(training.reducer, training.parameters, every=options.every, weight=training.weight)
