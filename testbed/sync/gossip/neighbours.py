"""A member's neighbours in the communication graph, and a weighted mean that is built up as updates come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Neighbours:
    """A member's neighbours in the communication graph.

    Raises:
        ValueError: There is no source or no target, the member is its own neighbour, or the weights do not fit.
    """

    #: The member itself.
    member: str
    #: The members that send to this member, itself excluded.
    sources: tuple[str, ...]
    #: The members to which this member sends, itself excluded.
    targets: tuple[str, ...]
    #: The weight of each source, and of the member itself, in the member's average; all positive.
    weights: Mapping[str, float]

    def without(self, gone: str) -> Neighbours:
        """Return the neighbours without the member `gone`, whose weight the member itself takes.

        So a symmetric matrix of weights whose rows sum to 1 stays one, and all members' parameters count alike.

        Raises:
            ValueError: No source or no target is left.
        """
        weights = dict(self.weights)
        weights[self.member] += weights.pop(gone, 0.0)
        return Neighbours(
            self.member,
            tuple(source for source in self.sources if source != gone),
            tuple(target for target in self.targets if target != gone),
            weights,
        )

    def __post_init__(self) -> None:
        if not self.sources or not self.targets:
            raise ValueError(f"{self.member} has no member to receive from, or none to send to; train it alone instead")
        if self.member in self.sources or self.member in self.targets:
            raise ValueError(f"{self.member} is its own neighbour; leave it out: its average includes itself anyway")
        if set(self.weights) != {self.member, *self.sources}:
            raise ValueError(f"{self.member}: weights are for {sorted(self.weights)}, not for itself and its sources")
        if not all(weight > 0 for weight in self.weights.values()):
            raise ValueError(f"{self.member}: a weight is not positive; drop the edge instead")


class WeightedMean:
    """The sum of weight x update, divided by the sum of weights: the mean of the updates so far."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._weight = 0.0

    def add(self, update: Tensor, weight: float) -> None:
        """Add an update, of any shape but always the same, with a positive weight."""
        self._sum = update * weight if self._sum is None else self._sum.add_(update, alpha=weight)
        self._weight += weight

    @property
    def value(self) -> Tensor:
        """The mean so far. Raises RuntimeError if no update was added."""
        if self._sum is None:
            raise RuntimeError("the mean has no updates: add one first")
        return self._sum / self._weight
