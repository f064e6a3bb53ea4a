"""The strategies as methods of a session."""

from __future__ import annotations

from torch import nn

from testbed.sync.outer import Outer
from testbed.sync.strategies.diloco import DiLoCo, Streaming
from testbed.sync.strategies.gradients import Gradients
from testbed.sync.strategies.local import LocalSgd
from testbed.sync.strategies.post_local import PostLocalSgd
from testbed.sync.strategies.powersgd import PowerSgd
from testbed.sync.strategies.strategy import Reducer, Steps


class Offers(Reducer):
    """What a session can do around an optimizer's steps: each returns a context manager for the training loop.

    Members must begin with the same parameters and take equally many steps. A model's buffers stay each member's.
    """

    def gradients(
        self, model: nn.Module, optimizer: Steps, weight: float = 1.0, powersgd: PowerSgd | None = None
    ) -> Gradients:
        """Every step by the members' mean gradient, weighted by their `weight`s, say the samples of a step."""
        return Gradients(self, list(model.parameters()), optimizer, weight, powersgd)

    def local_sgd(
        self, model: nn.Module, optimizer: Steps, every: int = 8, outer: Outer | None = None, weight: float = 1.0
    ) -> LocalSgd:
        """Every `every` steps to the members' mean parameters, or to where `outer` takes the mean change."""
        return LocalSgd(self, list(model.parameters()), optimizer, every, outer, weight)

    def post_local_sgd(
        self, model: nn.Module, optimizer: Steps, start: int = 100, every: int = 8, weight: float = 1.0
    ) -> PostLocalSgd:
        """The first `start` steps by the mean gradient, from then on local SGD."""
        return PostLocalSgd(self, list(model.parameters()), optimizer, start, every, weight)

    def diloco(
        self,
        model: nn.Module,
        optimizer: Steps,
        every: int = 32,
        outer: Outer | None = None,
        fragments: int = 1,
        delay: int = 0,
        weight: float = 1.0,
    ) -> DiLoCo:
        """DiLoCo, streamed in `fragments` with `delay` steps' time for each; `outer` is Nesterov(0.7, 0.9)."""
        streaming = Streaming(fragments, delay)
        return DiLoCo(self, list(model.parameters()), optimizer, every, outer, streaming, weight)
