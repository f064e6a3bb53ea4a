"""SGD, Adam and AdamW over one flat vector of all parameters; the same steps as torch.optim's with its defaults.

Not torch.optim's own, because making one imports PyTorch's compiler: 1.1 s of CPU time for each of many workers
that start on few cores. Over one vector a step is also a handful of operations, whatever the number of layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch


class Optimizer(Protocol):
    """Changes parameters in place, by their gradient."""

    def step(self, parameters: torch.Tensor, gradient: torch.Tensor) -> None:
        """One step; both flat and of one length."""

    def state_dict(self) -> dict[str, Any]:
        """What the next step depends on, beside the parameters."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""


class Sgd:
    """x ← x − lr·g"""

    def __init__(self, learning_rate: float) -> None:
        self._learning_rate = learning_rate

    def step(self, parameters: torch.Tensor, gradient: torch.Tensor) -> None:
        """One step."""
        parameters.add_(gradient, alpha=-self._learning_rate)

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """There is nothing to go on from."""


class Adam:
    """Kingma and Ba 2015, algorithm 1; with `decay`, AdamW (Loshchilov and Hutter 2019)."""

    BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8

    def __init__(self, learning_rate: float, decay: float = 0.0) -> None:
        self._learning_rate = learning_rate
        self._decay = decay
        self._steps = 0
        self._mean = torch.empty(0)
        self._square = torch.empty(0)

    def step(self, parameters: torch.Tensor, gradient: torch.Tensor) -> None:
        """One step."""
        if not self._steps:
            self._mean, self._square = torch.zeros_like(parameters), torch.zeros_like(parameters)
        self._steps += 1
        if self._decay:
            parameters.mul_(1 - self._learning_rate * self._decay)
        self._mean.lerp_(gradient, 1 - self.BETA1)
        self._square.mul_(self.BETA2).addcmul_(gradient, gradient, value=1 - self.BETA2)
        size = self._learning_rate / (1 - self.BETA1**self._steps)
        spread = (self._square / (1 - self.BETA2**self._steps)).sqrt_().add_(self.EPSILON)
        parameters.addcdiv_(self._mean, spread, value=-size)

    def state_dict(self) -> dict[str, Any]:
        """The count of steps and both moments."""
        return {"steps": self._steps, "mean": self._mean, "square": self._square}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._steps, self._mean, self._square = int(state["steps"]), state["mean"], state["square"]


#: What torch.optim.AdamW takes by default.
ADAMW_DECAY = 0.01


def make(name: str, learning_rate: float) -> Optimizer:
    """The optimizer of that name; ValueError when there is none."""
    if name == "sgd":
        return Sgd(learning_rate)
    if name == "adam":
        return Adam(learning_rate)
    if name == "adamw":
        return Adam(learning_rate, ADAMW_DECAY)
    raise ValueError(f"no such optimizer: {name!r}; there are sgd, adam and adamw")
