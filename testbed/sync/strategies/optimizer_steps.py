"""The steps of a training loop's optimizers, around which a strategy is called by PyTorch's own hooks.

    one       before_step ▸ step ▸ after_step
    several                 step ▸ step ▸ after_step        each once, in any order
    GradScaler                  ▸ after_step                where it skips a step because gradients overflowed

A step that a GradScaler skips counts as one: it is skipped at one member, while the others take theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.amp import GradScaler

from testbed.sync.strategies.strategy import Strategy

#: The optimizers whose steps are counted now. Others step under a GradScaler as without a strategy.
_counted: WeakKeyDictionary[torch.optim.Optimizer, OptimizerSteps] = WeakKeyDictionary()


class OptimizerSteps:
    """Calls a strategy before and after each step of its loop, in which all `optimizers` step once.

    Args:
        strategy: The strategy.
        optimizers: The loop's optimizers.
        fixed: Whether they must train the same tensors to the end, since the strategy synchronizes no others.

    Raises:
        ValueError: The loop steps in a way that the strategy can't follow; it may come out of an optimizer's step.
    """

    def __init__(self, strategy: Strategy, optimizers: Sequence[torch.optim.Optimizer], fixed: bool = True) -> None:
        self._strategy = strategy
        self._taken = dict.fromkeys(optimizers, 0)
        self._trains = {optimizer: trained(optimizer) for optimizer in optimizers} if fixed else {}
        self._needs_gradients = type(strategy).before_step is not Strategy.before_step
        self.taken = 0  # steps of the loop
        if self._needs_gradients and len(optimizers) > 1:
            raise ValueError(
                "this scheme averages all gradients before a step, and with several optimizers one may step before the "
                "gradients of the others are computed; write instead: local_sgd, diloco or sparta"
            )

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Call the strategy around the optimizers' steps while inside."""
        _watch_scalers()
        handles = []
        for optimizer in self._taken:
            handles += [
                optimizer.register_step_pre_hook(self._before),
                optimizer.register_step_post_hook(self._after),
            ]
            _counted[optimizer] = self
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            for optimizer in self._taken:
                _counted.pop(optimizer, None)

    def scaled(self, optimizer: torch.optim.Optimizer, enabled: bool, step: Callable[[], Any]) -> Any:
        """Run a GradScaler's `step`, which may skip the optimizer's, and count it as a step in both cases."""
        if self._needs_gradients and enabled:
            raise ValueError(
                "GradScaler leaves a step out where gradients overflow, and this scheme needs all members' gradients "
                "in each; write instead: bfloat16 without a GradScaler, or local_sgd, diloco or sparta"
            )
        before = self._taken[optimizer]
        result = step()
        if self._taken[optimizer] == before:
            self._after(optimizer)
        return result

    def _before(self, optimizer: torch.optim.Optimizer, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        if self._needs_gradients and any(one is not None for one in (*arguments[1:], named.get("closure"))):
            raise ValueError(
                "an optimizer that is given a closure makes its gradients inside its step, where this scheme can't "
                "average them; write instead: step() without one, or local_sgd, diloco or sparta"
            )
        began = self._trains.get(optimizer)
        if began is not None and (now := trained(optimizer)) != began:
            raise ValueError(
                f"an optimizer trained {len(began)} tensors when the scheme began, and now trains {len(now)}, of which "
                f"{len(now - began)} are others: only the first ones are synchronized; write instead: one `wrap` for "
                "each stage of the training, around a DistributedDataParallel of its own if there is one"
            )
        self._strategy.before_step()

    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._taken[optimizer] += 1
        if self._taken[optimizer] > self.taken + 1:
            raise ValueError(
                "one optimizer stepped twice before another stepped once: under a scheme all step in turn; write "
                "instead: `wrap` with those that do"
            )
        if min(self._taken.values()) > self.taken:
            self.taken += 1
            self._strategy.after_step()


def trained(optimizer: torch.optim.Optimizer) -> frozenset[int]:
    """Return the ids of the tensors that an optimizer trains."""
    every = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return frozenset(id(parameter) for parameter in every if parameter.requires_grad)


def _watch_scalers() -> None:
    """Make GradScaler, which has no hooks, report the steps of counted optimizers."""
    step = GradScaler.step
    if hasattr(step, "__wrapped__"):
        return

    @wraps(step)
    def told(self: GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        steps = _counted.get(optimizer)
        if steps is None:
            return step(self, optimizer, *args, **kwargs)
        return steps.scaled(optimizer, self.is_enabled(), lambda: step(self, optimizer, *args, **kwargs))

    GradScaler.step = told  # type: ignore[method-assign]
