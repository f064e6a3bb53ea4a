"""Gradients of low rank: PowerSGD (Vogels et al. 2019, algorithms 1 and 2), with error feedback and warm start.

    M = gradient + residual (n × m)      P = mean of M·Q, orthogonalized (n × r)      Q = mean of Mᵀ·P (m × r)
    gradient ← P·Qᵀ                      residual ← M − P·Qᵀ

Both means are plain all-reduces of small matrices, so relays need to know nothing of it. A tensor of more than two
dimensions counts as a matrix of its first and all others; vectors, and matrices too small to gain, go whole, with
the first round. So a step costs two rounds, hence two round trips more than one, and r·(n + m) numbers a matrix
instead of n·m.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from testbed.sync import flat
from testbed.sync.strategies.strategy import Reducer, check_whole

#: All members begin with the same Q.
_SEED = 1


class PowerSgd:
    """Reduces the same list of gradients again and again at rank `rank`.

    Members end a step bit-identical where they compute alike (the same PyTorch on the same kind of processor): each
    makes P orthogonal by itself.
    """

    def __init__(self, rank: int) -> None:
        if rank < 1:
            raise ValueError(f"PowerSGD's rank is {rank}; it must be at least 1")
        self.rank = rank
        self._q: list[torch.Tensor] = []
        self._residuals: list[torch.Tensor] = []

    def reduce(self, reducer: Reducer, gradients: Sequence[torch.Tensor], weight: float) -> None:
        """Replace the gradients by the low-rank part of their mean over the members."""
        matrices = [g.view(len(g), -1) for g in gradients if self._gains(g)]
        whole = [g for g in gradients if not self._gains(g)]
        if not self._q:
            self._begin(matrices)
        # Restored from a checkpoint they are on the host.
        self._q = [q.to(matrix.device) for matrix, q in zip(matrices, self._q, strict=True)]
        self._residuals = [one.to(matrix.device) for matrix, one in zip(matrices, self._residuals, strict=True)]
        sums = [matrix + residual for matrix, residual in zip(matrices, self._residuals, strict=True)]
        p = [matrix @ q for matrix, q in zip(sums, self._q, strict=True)]
        _mean(reducer, [*p, *whole], weight)
        p = [torch.linalg.qr(one).Q for one in p]
        self._q = [matrix.T @ one for matrix, one in zip(sums, p, strict=True)]
        if matrices:
            _mean(reducer, self._q, weight)
        for matrix, total, residual, one, q in zip(matrices, sums, self._residuals, p, self._q, strict=True):
            torch.mm(one, q.T, out=matrix)
            torch.sub(total, matrix, out=residual)

    def state_dict(self) -> dict[str, Any]:
        """The residuals and the last Q, which the next step begins with."""
        return {"q": [q.clone() for q in self._q], "residuals": [one.clone() for one in self._residuals]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self._q = [q.clone() for q in state["q"]]
        self._residuals = [one.clone() for one in state["residuals"]]

    def _gains(self, gradient: torch.Tensor) -> bool:
        if gradient.dim() < 2:
            return False
        rows, columns = len(gradient), gradient[0].numel()
        return self.rank * (rows + columns) < rows * columns

    def _begin(self, matrices: Sequence[torch.Tensor]) -> None:
        draw = torch.Generator().manual_seed(_SEED)
        self._q = [torch.randn(m.shape[1], self.rank, generator=draw).to(m.device) for m in matrices]
        self._residuals = [torch.zeros_like(matrix) for matrix in matrices]


def _mean(reducer: Reducer, tensors: Sequence[torch.Tensor], weight: float) -> None:
    values = flat.gather(tensors, flat.room(tensors))
    check_whole(reducer.allreduce(values, weight))
    flat.scatter(values, tensors)
