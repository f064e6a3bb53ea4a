"""Synchronous SGD: every step by the mean of all members' gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from testbed.sync import flat
from testbed.sync.codecs import Residual
from testbed.sync.strategies.powersgd import PowerSgd
from testbed.sync.strategies.strategy import Reducer, Steps, Strategy, check_whole


class Gradients(Strategy):
    """Replaces the gradients by the members' mean before each step, in one round (two with PowerSGD).

    All gradients travel as one tensor. A parameter without a gradient counts as zeros, because another member may have
    a gradient for it.

    Args:
        reducer: The session.
        parameters: The parameters whose gradients are reduced, float32, on one device.
        optimizer: The optimizer whose steps count, or None if the loop calls `before_step` itself.
        weight: This member's weight in the mean.
        powersgd: Sends gradients at low rank; None sends them whole.
    """

    def __init__(
        self,
        reducer: Reducer,
        parameters: Sequence[torch.Tensor],
        optimizer: Steps | None = None,
        weight: float = 1.0,
        powersgd: PowerSgd | None = None,
    ) -> None:
        super().__init__(optimizer, weight)
        self._reducer = reducer
        self._parameters = parameters
        self._powersgd = powersgd
        self._residual = Residual()
        self._room = flat.room(parameters) if len(parameters) != 1 else torch.empty(0)

    def before_step(self) -> None:
        """Replace every gradient by the members' mean."""
        gradients = [_gradient(parameter) for parameter in self._parameters]
        if self._powersgd is not None:
            self._powersgd.reduce(self._reducer, gradients, self.weight)
        elif len(gradients) == 1 and gradients[0].is_contiguous():
            check_whole(self._reducer.allreduce(gradients[0], self.weight, self._residual))
        else:
            check_whole(self._reducer.allreduce(flat.gather(gradients, self._room), self.weight, self._residual))
            flat.scatter(self._room, gradients)

    @property
    def together(self) -> bool:
        """True: all members take the same steps."""
        return True

    def over(self, rounds: int, taken: int) -> bool:
        """Return whether the steps make enough rounds: one a step, two with PowerSGD."""
        return taken >= (max(1, rounds // 2) if self._powersgd else rounds)

    def state_dict(self) -> dict[str, Any]:
        """Return the residuals of codecs and PowerSGD."""
        powersgd = self._powersgd.state_dict() if self._powersgd else None
        return {"residual": self._residual.state(), "powersgd": powersgd}

    def handover(self) -> dict[str, Any]:
        """Return the state for a member that joins, which starts without residuals."""
        return {**self.state_dict(), "residual": None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the residuals of codecs and PowerSGD, which `state_dict` returned."""
        self._residual.restore(state["residual"])
        if self._powersgd is not None and state["powersgd"] is not None:
            self._powersgd.load_state_dict(state["powersgd"])


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
