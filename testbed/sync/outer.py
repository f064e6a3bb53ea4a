"""Outer optimizers: what members make of the mean of their changes. Each works on one flat tensor of float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class Outer(Protocol):
    """Moves `values` in place by the mean `change` (before minus after, as a gradient points).

    `momentum` has the shape of `values`, begins as zeros, and is the outer optimizer's own.
    """

    def step(self, values: torch.Tensor, change: torch.Tensor, momentum: torch.Tensor) -> None:
        """One step."""


@dataclass(frozen=True, slots=True)
class Average:
    """The mean of the members' parameters: local SGD (Stich 2019)."""

    def step(self, values: torch.Tensor, change: torch.Tensor, momentum: torch.Tensor) -> None:
        """x ← x − Δ"""
        values.sub_(change)


@dataclass(frozen=True, slots=True)
class Nesterov:
    """SGD with Nesterov momentum on the mean change: DiLoCo (Douillard et al. 2023, algorithm 1), as torch.optim's."""

    learning_rate: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if self.learning_rate <= 0 or not 0 <= self.momentum < 1:
            raise ValueError(f"{self}: the learning rate must be above 0, the momentum at least 0 and below 1")

    def step(self, values: torch.Tensor, change: torch.Tensor, momentum: torch.Tensor) -> None:
        """m ← μm + Δ, x ← x − lr·(Δ + μm)"""
        momentum.mul_(self.momentum).add_(change)
        values.sub_(change.add(momentum, alpha=self.momentum), alpha=self.learning_rate)
