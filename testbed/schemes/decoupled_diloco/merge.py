"""What several members' changes of a fragment come to (arXiv 2604.21428, its appendix D.2).

    mean      Δ = Σ w_m Δ_m / Σ w_m
    radial    Δ = (Σ w_m ‖Δ_m‖ / Σ w_m) · φ(Σ w_m φ(Δ_m) / Σ w_m),   φ(x) = x / ‖x‖, φ(0) = 0

The changes of M members that point in all directions, each of length R, have a mean of length R/√M: the outer learning
rate would have to grow with √M. Radial-directional averaging keeps the length R. At an optimum, where changes cancel,
it keeps it as well, so that it settles only as far as members' steps shrink. The authors average the embedding's
changes as they are; ours do not know which parameters those are, and a fragment is averaged as one [ours].
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from testbed.sync.gossip.average import WeightedMean

#: (weight, change) of each member; weights are positive.
Weighed = Collection[tuple[float, Tensor]]


def mean(changes: Weighed) -> Tensor:
    """The changes' weighted mean."""
    average = WeightedMean()
    for weight, change in changes:
        average.add(change, weight)
    return average.value


def radial(changes: Weighed) -> Tensor:
    """The mean direction, as long as changes are in the mean; their plain mean where directions cancel out."""
    lengths = [float(change.norm()) for _, change in changes]
    if not any(lengths):
        return mean(changes)
    along = mean(
        [(weight, change / (length or 1.0)) for (weight, change), length in zip(changes, lengths, strict=True)]
    )
    size = float(along.norm())
    if size <= torch.finfo(along.dtype).eps:
        return mean(changes)
    weights = [weight for weight, _ in changes]
    length = sum(weight * its for weight, its in zip(weights, lengths, strict=True)) / sum(weights)
    return along * (length / size)


MERGES = {"mean": mean, "radial": radial}
