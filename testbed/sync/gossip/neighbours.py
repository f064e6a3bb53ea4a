"""A member's place in the communication graph.

A weighted average that is built up as updates come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Who sends to `member` and to whom it sends, itself in neither.

    `weights` are those of averaging what comes, for each source and for the member itself; all positive.
    """

    member: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    weights: Mapping[str, float]

    def without(self, gone: str) -> Neighbours:
        """The same place in the graph that `gone` has left; ValueError when that leaves nobody."""
        return Neighbours(
            self.member,
            tuple(source for source in self.sources if source != gone),
            tuple(target for target in self.targets if target != gone),
            {name: weight for name, weight in self.weights.items() if name != gone},
        )

    def __post_init__(self) -> None:
        if not self.sources or not self.targets:
            raise ValueError(f"{self.member} has nobody to hear from or nobody to send to; train it alone instead")
        if self.member in self.sources or self.member in self.targets:
            raise ValueError(f"{self.member} is its own neighbour; leave it out, averaging counts its own anyway")
        if set(self.weights) != {self.member, *self.sources}:
            raise ValueError(f"{self.member}: weights are for {sorted(self.weights)}, not for itself and its sources")
        if not all(weight > 0 for weight in self.weights.values()):
            raise ValueError(f"{self.member}: a weight is not positive; drop the edge instead")


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
