"""Drift: the members' distances from the mean when all merge their changes, and the merge's effect on the loss.

A member knows its own change Δ_i and learns the mean Δ̄, so it knows its distance from the mean, ‖Δ_i - Δ̄‖. No member
knows the distance of a group's mean. So each member reports SUMS random sums of Δ_i - Δ̄, with the same signs at all
members (a sketch with one sign an element: Charikar, Chen and Farach-Colton 2002). Sums are linear: the sketch of a
group's mean is the mean of its members' sketches, and its length is that of the vector within a tenth (standard
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

#: The number of random sums that a member reports of a fragment.
SUMS = 64

#: Returns the loss of the last batch at the current parameters; None if there was no batch.
Loss = Callable[[], float | None]


@dataclass
class DriftMeter:
    """Measures the drift of one fragment of a model in global rounds. It keeps a copy of the fragment in memory."""

    #: The fragment's number.
    fragment: int
    loss: Loss
    #: The loss is measured in each `every`-th merge, because it costs a forward pass before the merge and one after it.
    every: int
    #: The results since they were last taken.
    found: list[FragmentDrift] = field(default_factory=list)
    _own: Tensor | None = None
    _merges: int = 0

    def sent(self, change: Tensor) -> None:
        """Copy the change that this member contributes to a round, to compare it with the members' mean later."""
        if self._own is None:
            self._own = torch.empty_like(change)
        self._own.copy_(change)

    @contextmanager
    def merging(self, mean: Tensor, weight: float) -> Iterator[None]:
        """Measure a merge: inside the context the caller moves the parameters by the `mean` change of all members."""
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
    """Return SUMS sums of the values with random signs, which depend on the number of values alone."""
    signed = functional.pad(values * _signs(len(values)).to(values.device), (0, -len(values) % SUMS))
    return tuple(float(f"{value:.4g}") for value in signed.view(-1, SUMS).sum(0).tolist())


@lru_cache(maxsize=64)
def _signs(count: int) -> Tensor:
    drawn = torch.randint(0, 2, (count,), generator=torch.Generator().manual_seed(count), dtype=torch.int8)
    return drawn.mul_(2).sub_(1)
