"""Small problems with a known answer: each member has a quadratic of its own, all together have one minimum."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch
from torch import Tensor

DIMENSIONS = 3


class Quadratics:
    """Member m minimizes (x - c)' diag(a) (x - c) / 2 alone; all together are least at the c's weighted mean."""

    def __init__(self, members: Sequence[str], random: Random, rate: float = 0.5) -> None:
        def draw(low: float, high: float) -> Tensor:
            return torch.tensor([random.uniform(low, high) for _ in range(DIMENSIONS)])

        self.start = {member: draw(-5, 5) for member in members}
        self._curvature = {member: draw(0.5, 2) for member in members}
        self._centre = {member: draw(-5, 5) for member in members}
        self._rate = rate

    @property
    def optimum(self) -> Tensor:
        """Where the sum of all members' quadratics is least."""
        weighted = sum((self._curvature[m] * self._centre[m] for m in self._centre), torch.zeros(DIMENSIONS))
        return weighted / sum(self._curvature.values(), torch.zeros(DIMENSIONS))

    def change(self, member: str, iteration: int, parameters: Tensor) -> Tensor:
        """Return the change by a gradient step, whose rate falls as 1 / (1 + iteration / 5)."""
        gradient = self._curvature[member] * (parameters - self._centre[member])
        return -self._rate / (1 + iteration / 5) * gradient

    def distance(self, parameters: Tensor) -> float:
        """How far `parameters` are from the common optimum."""
        return float((parameters - self.optimum).norm())
