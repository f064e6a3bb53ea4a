"""A shard of a group's parameters at the member that owns it: adds up rounds, and takes in what others have merged."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from testbed.schemes.staggered.rules import StaggeredRules


class OwnedShard:
    """The elements [start, start + len(values)) of a group's parameters; `values` are as the last round left them."""

    def __init__(self, rules: StaggeredRules, start: int, values: Tensor) -> None:
        self.start = start
        self.values = values.clone()
        self._rules = rules
        self._anchor = self.values  # as the last exchange left them
        self._residual = torch.zeros_like(self.values)  # what the codec left out of moves so far
        self._missing, self._round = 0, 0  # elements that are to come back, and the round of their exchange

    @property
    def stop(self) -> int:
        """Where the next shard begins."""
        return self.start + len(self.values)

    @property
    def awaits(self) -> bool:
        """Whether elements are still to come back from an exchange."""
        return self._missing > 0

    def add(self, changes: Iterable[Tensor]) -> None:
        """Add a round's changes; in one order, so that the bits do not hang on which member was first."""
        first, *others = changes
        self.values = self.values + sum(others, first)

    def move(self, number: int) -> Tensor:
        """How far the group has gone since its last exchange, as the codec has it. From now on the exchange of round
        `number` is awaited."""
        exact = self.values - self._anchor + self._residual
        moved = self._rules.rounded(exact)
        self._residual = exact - moved
        self.values = moved.clone()  # filled with what comes back
        self._missing, self._round = len(self.values), number
        return moved

    def put(self, number: int, start: int, values: Tensor) -> None:
        """Elements that come back; ValueError when they are not awaited."""
        if number != self._round or not self.start <= start <= self.stop - len(values):
            raise ValueError(f"{len(values)} elements from {start} of round {number}, which are not waited for")
        first = start - self.start
        self.values[first : first + len(values)] = values
        self._missing -= len(values)
        if not self._missing:
            self._anchor = self.values
