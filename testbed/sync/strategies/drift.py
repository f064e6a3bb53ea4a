"""How far a member stands from the others when all merge what they changed, and what the merge does to the loss.

A member knows what it changed, Δ_i, and learns the mean, Δ̄: ‖Δ_i - Δ̄‖ is how far it stands from the mean of all. How
far a group's mean stands nobody knows: its members do not meet in a round among all. So each tells SUMS random sums of
Δ_i - Δ̄, the same for all (a sketch with one sign an element: Charikar, Chen and Farach-Colton 2002). Sums are linear:
those of a group's mean are the mean of its members', and their length is the mean's own within a tenth (standard
deviation 1/√(2 · SUMS) = 9 % of it), for 64 numbers a fragment in place of the fragment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from testbed.protocol import FragmentDrift

#: Random sums that a member tells of a fragment.
SUMS = 64

#: The loss of the last batch at the parameters as they are; None where there is none.
Loss = Callable[[], float | None]


@dataclass
class DriftMeter:
    """Follows the rounds among all of the `fragment`-th part of a model; what it found since it was last asked is in
    `found`. A copy of the fragment in memory.

    `loss` costs a forward pass, before the merge and after it: it is asked in each `every`-th merge.
    """

    fragment: int
    loss: Loss
    every: int
    found: list[FragmentDrift] = field(default_factory=list)
    _own: Tensor | None = None
    _merges: int = 0

    def sent(self, change: Tensor) -> None:
        """What this member changed goes off, as it counts in the mean."""
        if self._own is None:
            self._own = torch.empty_like(change)
        self._own.copy_(change)

    @contextmanager
    def merging(self, mean: Tensor, weight: float) -> Iterator[None]:
        """While inside, the parameters move by the `mean` change of all."""
        assert self._own is not None
        apart = self._own.sub_(mean)
        length, moved, sums = float(apart.norm()), float(mean.norm()), sketch(apart)
        asks = self._merges % self.every == 0
        self._merges += 1
        before = self.loss() if asks else None
        yield
        after = self.loss() if asks else None
        self.found.append(FragmentDrift(self.fragment, weight, length, moved, sums, before, after))


def sketch(values: Tensor) -> tuple[float, ...]:
    """SUMS sums of the values under random signs, by their places; the same sums for any values of that length."""
    signed = functional.pad(values * _signs(len(values)).to(values.device), (0, -len(values) % SUMS))
    return tuple(float(f"{value:.4g}") for value in signed.view(-1, SUMS).sum(0).tolist())


@lru_cache(maxsize=64)
def _signs(count: int) -> Tensor:
    drawn = torch.randint(0, 2, (count,), generator=torch.Generator().manual_seed(count), dtype=torch.int8)
    return drawn.mul_(2).sub_(1)
