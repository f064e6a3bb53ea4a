"""The strategies as methods of a session."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from testbed.sync.strategies.diloco import DiLoCo
from testbed.sync.strategies.gradients import Gradients, PowerSgd
from testbed.sync.strategies.local_sgd import LocalSgd, PostLocalSgd
from testbed.sync.strategies.periodic import Outer
from testbed.sync.strategies.strategy import Reducer


class StrategyMethods(Reducer):
    """Methods that return a strategy, a context manager to put around the training loop.

    Members must begin with the same parameters and take equally many steps. A model's buffers, such as BatchNorm's
    running means, stay each member's own. `weight` is this member's weight in the mean, such as its samples a step.
    """

    def gradients(
        self, model: nn.Module, optimizer: Optimizer, weight: float = 1.0, powersgd: PowerSgd | None = None
    ) -> Gradients:
        """Take every step by the members' mean gradient.

        Args:
            model: The model whose gradients are averaged.
            optimizer: The optimizer that takes the steps.
            weight: This member's weight in the mean.
            powersgd: Sends gradients at low rank; None sends them whole.
        """
        return Gradients(self, list(model.parameters()), optimizer, weight, powersgd)

    def local_sgd(
        self, model: nn.Module, optimizer: Optimizer, every: int = 8, outer: Outer | None = None, weight: float = 1.0
    ) -> LocalSgd:
        """Average the parameters every few steps.

        Args:
            model: The model whose parameters are averaged.
            optimizer: The optimizer that takes the local steps.
            every: Steps from one round to the next.
            outer: Steps by the members' mean change; None takes the mean of the parameters.
            weight: This member's weight in the mean.
        """
        return LocalSgd(self, list(model.parameters()), optimizer, every, outer, weight)

    def post_local_sgd(
        self, model: nn.Module, optimizer: Optimizer, start: int = 100, every: int = 8, weight: float = 1.0
    ) -> PostLocalSgd:
        """Take the first `start` steps by the mean gradient, and average the parameters every few steps afterwards.

        Args:
            model: The model to synchronize.
            optimizer: The optimizer that takes the steps.
            start: The number of steps by the mean gradient.
            every: Steps from one round to the next afterwards.
            weight: This member's weight in the mean.
        """
        return PostLocalSgd(self, list(model.parameters()), optimizer, start, every, weight)

    def diloco(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        every: int = 32,
        outer: Outer | None = None,
        fragments: int = 1,
        delay: int = 0,
        weight: float = 1.0,
    ) -> DiLoCo:
        """Train by DiLoCo, streamed if `fragments` or `delay` say so.

        Args:
            model: The model whose parameters are synchronized.
            optimizer: The inner optimizer.
            every: Steps in a period, in which each fragment is synchronized once; a multiple of `fragments`.
            outer: The outer optimizer; Nesterov(0.7, 0.9) if None.
            fragments: Parts of the model, each synchronized at its own step of the period.
            delay: Steps taken while a fragment is reduced, below `every`.
            weight: This member's weight in the mean.
        """
        return DiLoCo(self, list(model.parameters()), optimizer, every, outer, fragments, delay, weight)
