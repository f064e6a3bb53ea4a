"""Synchronous SGD around a loop's steps."""

from __future__ import annotations

from testbed.schemes.gradients import GradientsOptions
from testbed.schemes.training import RoundTraining
from testbed.sync.strategies import Gradients, PowerSgd, Strategy


def build(options: GradientsOptions, training: RoundTraining) -> Strategy:
    """The strategy for a member's model."""
    powersgd = PowerSgd(options.powersgd_rank) if options.powersgd_rank else None
    return Gradients(training.reducer, training.parameters, weight=training.weight, powersgd=powersgd)
