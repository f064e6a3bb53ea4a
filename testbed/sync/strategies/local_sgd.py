"""Local SGD (Stich 2019, arXiv 1805.09767) and post-local SGD (Lin et al. 2020, section 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from testbed.protocol import FragmentDrift
from testbed.sync.strategies.fragment import Fragment, Loss
from testbed.sync.strategies.gradients import Gradients
from testbed.sync.strategies.periodic import Average, Outer, Periodic
from testbed.sync.strategies.strategy import Reducer, Strategy


class LocalSgd(Periodic):
    """Local SGD: a member takes `every` steps alone, then all move to the mean of their parameters.

    Args:
        reducer: The session.
        parameters: The tensors to synchronize, float32, on one device.
        optimizer: The optimizer whose steps count, or None if the loop calls `after_step` itself.
        every: Steps from one round to the next, at least 1.
        outer: The outer optimizer, which steps by the members' mean change; Average() if None.
        weight: This member's weight in the mean.
        error_decay: The fraction of the codecs' errors in one round that is added to the next, in [0, 1].

    Raises:
        ValueError: `every` or `error_decay` is out of its range, or there are no parameters.
    """

    def __init__(
        self,
        reducer: Reducer,
        parameters: Sequence[torch.Tensor],
        optimizer: torch.optim.Optimizer | None = None,
        every: int = 8,
        outer: Outer | None = None,
        weight: float = 1.0,
        error_decay: float = 1.0,
    ) -> None:
        if every < 1:
            raise ValueError(f"every={every}: write at least 1, the steps from one round to the next")
        self._fragment = Fragment(parameters, onward=False, error_decay=error_decay)
        super().__init__(reducer, [self._fragment], outer or Average(), optimizer, weight)
        self._every = every

    def after_step(self) -> None:
        """Count the step, and run a round after each `every` steps."""
        self._steps += 1
        if self._steps >= self._began + self._every:  # a restored state may be of a longer period
            self._begin(self._fragment)
            self._finish(self._fragment)
            self._end_period()


class PostLocalSgd(Strategy):
    """Post-local SGD: the first steps by the mean gradient, while changes are large, and local SGD afterwards.

    Args:
        reducer: The session.
        parameters: The tensors to synchronize, float32, on one device.
        optimizer: The optimizer whose steps count, or None if the loop calls `before_step` and `after_step` itself.
        start: The number of steps by the mean gradient, at least 1.
        every: Steps from one round to the next afterwards, at least 1.
        weight: This member's weight in the mean.

    Raises:
        ValueError: `start` or `every` is out of its range, or there are no parameters.
    """

    def __init__(
        self,
        reducer: Reducer,
        parameters: Sequence[torch.Tensor],
        optimizer: torch.optim.Optimizer | None = None,
        start: int = 100,
        every: int = 8,
        weight: float = 1.0,
    ) -> None:
        super().__init__(optimizer, weight)
        if start < 1:
            raise ValueError(f"start={start}: write at least 1 step by gradients, or use local SGD")
        self._start = start
        self._every = every
        self._steps = 0
        self._gradients = Gradients(reducer, parameters)
        self._local = LocalSgd(reducer, parameters, every=every)

    def before_step(self) -> None:
        """Replace the gradients by their mean, in the first `start` steps."""
        if self._steps < self._start:
            self._gradients.weight = self.weight
            self._gradients.before_step()

    def after_step(self) -> None:
        """Count the step, and run local SGD's rounds after the first `start` steps."""
        self._steps += 1
        if self._steps == self._start:
            self._local.set_anchor()
        elif self._steps > self._start:
            self._local.weight = self.weight
            self._local.after_step()

    def settle(self) -> None:
        """Synchronize the changes since the last round."""
        self._local.settle()

    def over(self, rounds: int, taken: int) -> bool:
        """Return whether the steps make enough rounds: one a step in the first `start` steps, one a period later."""
        return taken >= min(rounds, self._start) + max(0, rounds - self._start) * self._every

    def agreed(self) -> AbstractContextManager[None]:
        """Show the parameters that all members last agreed on, as the phase in force defines them."""
        return self._gradients.agreed() if self._steps < self._start else self._local.agreed()

    def watch(self, loss: Loss, every: int) -> None:
        """Measure the drift of local SGD's rounds from now on; see Strategy."""
        self._local.watch(loss, every)

    def drift(self) -> tuple[FragmentDrift, ...]:
        """Return the drift measured in the global rounds since the last call."""
        return self._local.drift()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of both phases and the count of steps."""
        parts = {"gradients": self._gradients.state_dict(), "local": self._local.state_dict()}
        return {"steps": self._steps, **parts}

    def handover(self) -> dict[str, Any]:
        """Return the state for a member that joins, which starts without residuals."""
        parts = {"gradients": self._gradients.handover(), "local": self._local.handover()}
        return {"steps": self._steps, **parts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self._steps = int(state["steps"])
        self._gradients.load_state_dict(state["gradients"])
        self._local.load_state_dict(state["local"])
