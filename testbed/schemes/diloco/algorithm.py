"""DiLoCo around a loop's steps."""

from __future__ import annotations

from testbed.schemes.diloco import DilocoOptions
from testbed.schemes.training import RoundTraining
from testbed.sync import Nesterov
from testbed.sync.strategies import DiLoCo, Strategy, Streaming


def build(options: DilocoOptions, training: RoundTraining) -> Strategy:
    """The strategy for a member's model."""
    return DiLoCo(
        training.reducer,
        training.parameters,
        every=options.every,
        outer=Nesterov(options.outer.learning_rate, options.outer.momentum),
        streaming=Streaming(options.fragments, options.delay),
        weight=training.weight,
    )
