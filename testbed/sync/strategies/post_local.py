"""Gradients first, local steps later: post-local SGD (Lin et al. 2020, section 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from testbed.protocol import FragmentDrift
from testbed.sync.strategies.drift import Loss
from testbed.sync.strategies.gradients import Gradients
from testbed.sync.strategies.local import LocalSgd
from testbed.sync.strategies.strategy import Reducer, Steps, Strategy


class PostLocalSgd(Strategy):
    """The first `start` steps by the mean gradient, when changes are large; from then on local SGD."""

    def __init__(
        self,
        reducer: Reducer,
        parameters: Sequence[torch.Tensor],
        optimizer: Steps | None = None,
        start: int = 100,
        every: int = 8,
        weight: float = 1.0,
    ) -> None:
        super().__init__(optimizer, weight)
        if start < 1:
            raise ValueError(f"start={start}: at least 1 step by gradients; local SGD has none")
        self._start = start
        self._every = every
        self._steps = 0
        self._gradients = Gradients(reducer, parameters)
        self._local = LocalSgd(reducer, parameters, every=every)

    def before_step(self) -> None:
        """Replace the gradients by their mean, in the first steps."""
        if self._steps < self._start:
            self._gradients.weight = self.weight
            self._gradients.before_step()

    def after_step(self) -> None:
        """Synchronize the parameters, in the later steps."""
        self._steps += 1
        if self._steps == self._start:
            self._local.hold()
        elif self._steps > self._start:
            self._local.weight = self.weight
            self._local.after_step()

    def settle(self) -> None:
        """Synchronize what has changed since the last round."""
        self._local.settle()

    def over(self, rounds: int, taken: int) -> bool:
        return taken >= min(rounds, self._start) + max(0, rounds - self._start) * self._every

    def agreed(self) -> AbstractContextManager[None]:
        """As the strategy in force has it."""
        return self._gradients.agreed() if self._steps < self._start else self._local.agreed()

    def watch(self, loss: Loss, every: int) -> None:
        self._local.watch(loss, every)

    def drift(self) -> tuple[FragmentDrift, ...]:
        return self._local.drift()

    def state_dict(self) -> dict[str, Any]:
        """Both parts' states and the count of steps."""
        parts = {"gradients": self._gradients.state_dict(), "local": self._local.state_dict()}
        return {"steps": self._steps, **parts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self._steps = int(state["steps"])
        self._gradients.load_state_dict(state["gradients"])
        self._local.load_state_dict(state["local"])
