"""Outer optimizers, by which all members step by the mean of their changes. Each works on one flat float32 tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class Outer(Protocol):
    """An outer optimizer: moves the parameters that all members agree on, by the mean of the members' changes."""

    def step(self, values: torch.Tensor, change: torch.Tensor, momentum: torch.Tensor) -> None:
        """Move `values` by one step, in place.

        Args:
            values: The agreed values, flat float32.
            change: The members' mean change, before minus after, so that it points like a gradient; same shape.
            momentum: The outer optimizer's own state; same shape, zeros before the first step.
        """


@dataclass(frozen=True, slots=True)
class Average:
    """Takes the mean of the members' parameters: local SGD (Stich 2019)."""

    def step(self, values: torch.Tensor, change: torch.Tensor, momentum: torch.Tensor) -> None:
        """Step by x ← x − Δ."""
        values.sub_(change)


@dataclass(frozen=True, slots=True)
class Nesterov:
    """SGD with Nesterov momentum on the mean change: DiLoCo (Douillard et al. 2023, algorithm 1), as in torch.optim."""

    #: Above 0.
    learning_rate: float = 0.7
    #: In [0, 1).
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if self.learning_rate <= 0 or not 0 <= self.momentum < 1:
            raise ValueError(f"{self}: the learning rate must be above 0, the momentum at least 0 and below 1")

    def step(self, values: torch.Tensor, change: torch.Tensor, momentum: torch.Tensor) -> None:
        """Step by m ← μm + Δ, x ← x − lr·(Δ + μm)."""
        momentum.mul_(self.momentum).add_(change)
        values.sub_(change.add(momentum, alpha=self.momentum), alpha=self.learning_rate)
