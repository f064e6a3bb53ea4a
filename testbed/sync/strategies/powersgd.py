"""Gradients of low rank: PowerSGD (Vogels et al. 2019, algorithms 1 and 2), with error feedback and warm start.

    M = gradient + residual (n × m)      P = mean of M·Q, orthogonalized (n × r)      Q = mean of Mᵀ·P (m × r)
    gradient ← P·Qᵀ                      residual ← M − P·Qᵀ

Both means are plain all-reduces of small matrices, so relays need no knowledge of the algorithm. A tensor of more than
two dimensions counts as a matrix of its first dimension and all others. Vectors, and matrices too small to gain, travel
whole in the first round. So a step costs two rounds, hence two round trips more than one round, and r·(n + m) numbers a
matrix instead of n·m.
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
    """Reduces the same list of gradients in each step, at a low rank.

    Each member orthogonalizes P by itself, so members end a step with the same bits if they compute alike (the same
    PyTorch on the same kind of processor).

    Args:
        rank: The rank r of the reduced matrices, at least 1.
    """

    def __init__(self, rank: int) -> None:
        if rank < 1:
            raise ValueError(f"PowerSGD's rank is {rank}: write at least 1")
        self.rank = rank
        self._q: list[torch.Tensor] = []
        self._residuals: list[torch.Tensor] = []

    def reduce(self, reducer: Reducer, gradients: Sequence[torch.Tensor], weight: float) -> None:
        """Replace the gradients, in place, by the low-rank part of the members' mean.

        Args:
            reducer: The session.
            gradients: The gradients, of the same shapes in each call.
            weight: This member's weight in the mean.
        """
        matrices = [g.view(len(g), -1) for g in gradients if self._gains(g)]
        whole = [g for g in gradients if not self._gains(g)]
        if not self._q:
            self._begin(matrices)
        # Tensors restored from a checkpoint are on the host.
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
        """Return the residuals and the last Q, with which the next step begins."""
        return {"q": [q.clone() for q in self._q], "residuals": [one.clone() for one in self._residuals]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
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
