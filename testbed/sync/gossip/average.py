"""A weighted average that is built up as updates come."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class WeightedMean:
    """Sum of weight x update over the sum of weights, so that it is an average whoever is missing."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._weight = 0.0

    def add(self, update: Tensor, weight: float) -> None:
        """Counts `update`, any shape but always the same; `weight` is positive."""
        self._sum = update * weight if self._sum is None else self._sum.add_(update, alpha=weight)
        self._weight += weight

    @property
    def value(self) -> Tensor:
        """The average so far; RuntimeError when nothing was counted."""
        if self._sum is None:
            raise RuntimeError("an average of nothing")
        return self._sum / self._weight
