"""Delayed Nesterov (Liu et al. 2024, arXiv 2401.09135, algorithm 3 with c = 0): momentum for changes that come one by
one, from members that began at different times.

    x ← x - η·Δ                         each change; and in each N-th
    m ← β·m + mean of the last N Δ,     x ← x - η·N·β·m

With a momentum in every step each Δ would be taken further as often as others come meanwhile. N = 1 is SGD with
Nesterov momentum. The authors' code has η·N as the learning rate of Δ/N, which is the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from testbed.schemes.halos import DelayedOptions


class DelayedNesterov:
    """The `values` of a server, flat, and how changes move them. `values` is replaced, never written to."""

    def __init__(self, values: Tensor, options: DelayedOptions) -> None:
        self.values = values
        self.taken = 0
        self._options = options
        self._momentum = torch.zeros_like(values)
        self._sum = torch.zeros_like(values)

    def step(self, change: Tensor) -> None:
        """Take in a change, as x - x after the steps behind it."""
        rate, count = self._options.learning_rate, self._options.buffer
        self.values = self.values - rate * change
        self.taken += 1
        self._sum += change
        if self.taken % count == 0:
            self._momentum = self._options.momentum * self._momentum + self._sum / count
            self.values = self.values - rate * count * self._options.momentum * self._momentum
            self._sum.zero_()
