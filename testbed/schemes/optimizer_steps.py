"""A strategy around the steps of a loop's optimizers, by PyTorch's own hooks.

    one       before_step ▸ step ▸ after_step
    several                 step ▸ step ▸ after_step        each once, in any order
    GradScaler                  ▸ after_step                where it leaves a step out, since gradients overflowed

A step that a GradScaler leaves out counts as one: it does so at one member, while the others take theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.amp import GradScaler

from testbed.sync.strategies import Strategy

#: Whose optimizers' steps are counted now; optimizers that are none of these step as ever under a GradScaler.
_counted: WeakKeyDictionary[torch.optim.Optimizer, OptimizerSteps] = WeakKeyDictionary()


class OptimizerSteps:
    """Calls a strategy before and after the steps of its loop, for each of which all `optimizers` step once.

    ValueError, also out of an optimizer's step, where a loop steps so that the strategy can't be around it.
    """

    def __init__(self, strategy: Strategy, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._strategy = strategy
        self._taken = dict.fromkeys(optimizers, 0)
        self._trains = {optimizer: trained(optimizer) for optimizer in optimizers}
        self._needs_gradients = type(strategy).before_step is not Strategy.before_step
        self.taken = 0  # of the loop
        if self._needs_gradients and len(optimizers) > 1:
            raise ValueError(
                "this scheme averages gradients before they are used, and of several optimizers one uses its own "
                "before the others have theirs; write instead: local_sgd, diloco or sparta"
            )

    @contextmanager
    def counted(self) -> Iterator[None]:
        """The strategy is called while inside."""
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
        """A GradScaler's `step`, in which the optimizer may step or not."""
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
        if trained(optimizer) != self._trains[optimizer]:
            raise ValueError(
                f"an optimizer trained {self._trains[optimizer]} tensors when the scheme began, and now trains "
                f"{trained(optimizer)}: only the first are synchronized; write instead: a context for each stage"
            )
        self._strategy.before_step()

    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._taken[optimizer] += 1
        if self._taken[optimizer] > self.taken + 1:
            raise ValueError(
                "an optimizer has stepped twice, and another not once meanwhile: under a scheme all step in turn; "
                "write instead: to `wrap` those that do"
            )
        if min(self._taken.values()) > self.taken:
            self.taken += 1
            self._strategy.after_step()


def trained(optimizer: torch.optim.Optimizer) -> int:
    """How many tensors an optimizer moves."""
    return sum(parameter.requires_grad for group in optimizer.param_groups for parameter in group["params"])


def _watch_scalers() -> None:
    """Have GradScaler, which has no hooks, tell of the steps of optimizers that are counted."""
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
