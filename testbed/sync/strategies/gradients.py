"""Synchronous SGD: every step by the mean of all members' gradients, whole or at low rank (PowerSGD)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from testbed.sync import flat
from testbed.sync.codecs import Residual
from testbed.sync.strategies.strategy import Reducer, Strategy, check_whole

#: All members begin with the same Q.
_SEED = 1


class PowerSgd:
    """Reduces the same list of gradients in each step, at a low rank, with error feedback and warm start.

        M = gradient + residual (n × m)      P = mean of M·Q, orthogonalized (n × r)      Q = mean of Mᵀ·P (m × r)
        gradient ← P·Qᵀ                      residual ← M − P·Qᵀ

    Source: Vogels et al. 2019, algorithms 1 and 2. Both means are plain all-reduces of small matrices, so relays need
    no knowledge of the algorithm. A tensor of more than two dimensions counts as a matrix of its first dimension and
    all others. Vectors, and matrices too small to gain, travel whole in the first round. So a step costs two rounds,
    hence two round trips more than one round, and r·(n + m) numbers a matrix instead of n·m.

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
        large = [g for g in gradients if _gains(g, self.rank)]
        # PowerSGD computes in float32. Gradients of other types, and those in the layout channels_last, are copied.
        matrices = [g.reshape(len(g), -1).float() for g in large]
        whole = [g for g in gradients if not _gains(g, self.rank)]
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
        for gradient, matrix in zip(large, matrices, strict=True):
            gradient.copy_(matrix.view(gradient.shape))

    def state_dict(self) -> dict[str, Any]:
        """Return the residuals and the last Q, with which the next step begins."""
        return {"q": [q.clone() for q in self._q], "residuals": [one.clone() for one in self._residuals]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self._q = [q.clone() for q in state["q"]]
        self._residuals = [one.clone() for one in state["residuals"]]

    def _begin(self, matrices: Sequence[torch.Tensor]) -> None:
        draw = torch.Generator("cpu").manual_seed(_SEED)
        self._q = [
            torch.randn(m.shape[1], self.rank, generator=draw, dtype=torch.float32, device="cpu").to(m.device)
            for m in matrices
        ]
        self._residuals = [torch.zeros_like(matrix) for matrix in matrices]


def _gains(gradient: torch.Tensor, rank: int) -> bool:
    """Return whether factors of this rank have fewer numbers than the gradient."""
    if gradient.dim() < 2:
        return False
    rows, columns = len(gradient), gradient.shape[1:].numel()  # a tensor may have no elements
    return rank * (rows + columns) < rows * columns


def _mean(reducer: Reducer, tensors: Sequence[torch.Tensor], weight: float) -> None:
    values = flat.gather(tensors)
    check_whole(reducer.allreduce(values, weight))
    flat.scatter(values, tensors)


class Gradients(Strategy):
    """Replaces the gradients by the members' mean before each step, in one round (two with PowerSGD).

    All gradients travel as one tensor. A parameter without a gradient counts as zeros, because another member may have
    a gradient for it.

    Args:
        reducer: The session.
        parameters: The parameters whose gradients are reduced, on one device. Gradients travel as float32.
        optimizer: The optimizer whose steps count, or None if the loop calls `before_step` itself.
        weight: This member's weight in the mean.
        powersgd: Sends gradients at low rank; None sends them whole.
    """

    def __init__(
        self,
        reducer: Reducer,
        parameters: Sequence[torch.Tensor],
        optimizer: torch.optim.Optimizer | None = None,
        weight: float = 1.0,
        powersgd: PowerSgd | None = None,
    ) -> None:
        super().__init__(optimizer, weight)
        self._reducer = reducer
        self._parameters = parameters
        self._powersgd = powersgd
        self._residual = Residual()
        self._room: torch.Tensor | None = None

    def before_step(self) -> None:
        """Replace every gradient by the members' mean."""
        gradients = [_gradient(parameter) for parameter in self._parameters]
        if self._powersgd is not None:
            self._powersgd.reduce(self._reducer, gradients, self.weight)
        elif len(gradients) == 1 and gradients[0].is_contiguous() and gradients[0].dtype == torch.float32:
            check_whole(self._reducer.allreduce(gradients[0], self.weight, self._residual))
        else:
            self._room = flat.gather(gradients, self._room)
            check_whole(self._reducer.allreduce(self._room, self.weight, self._residual))
            flat.scatter(self._room, gradients)

    @property
    def elastic_misfit(self) -> str:
        """The reason why members can't leave and join under PowerSGD; empty without it."""
        if self._powersgd is None:
            return ""
        return "PowerSGD's step has two rounds, which leaves members no moment to come back: leave out `powersgd`"

    @property
    def together(self) -> bool:
        """True: all members take the same steps."""
        return True

    def over(self, rounds: int, taken: int) -> bool:
        """Return whether the steps make enough rounds: one a step, two where PowerSGD sends a gradient at low rank.

        Steps of two rounds may make one round more than asked for.
        """
        powersgd = self._powersgd
        two = powersgd is not None and any(_gains(parameter, powersgd.rank) for parameter in self._parameters)
        return taken >= (-(-rounds // 2) if two else rounds)

    def state_dict(self) -> dict[str, Any]:
        """Return the residuals of codecs and PowerSGD."""
        powersgd = self._powersgd.state_dict() if self._powersgd else None
        return {"residual": self._residual.state(), "powersgd": powersgd}

    def handover(self) -> dict[str, Any]:
        """Return the state for a member that joins, which starts without residuals. Nobody joins under PowerSGD."""
        return {"residual": None, "powersgd": None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the residuals of codecs and PowerSGD, which `state_dict` returned."""
        self._residual.restore(state["residual"])
        if self._powersgd is not None and state["powersgd"] is not None:
            self._powersgd.load_state_dict(state["powersgd"])


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    """Return a parameter's gradient, zeros if it has none.

    A frozen parameter keeps none: by a gradient of zeros an optimizer would move it, by weight decay or a momentum.

    Raises:
        ValueError: The gradient is sparse.
    """
    if parameter.grad is not None:
        if parameter.grad.layout != torch.strided:
            raise ValueError(
                f"the gradient of a parameter of shape {tuple(parameter.shape)} is sparse, and members average dense "
                "gradients: make its layer with sparse=False, or use local_sgd or diloco, which average parameters"
            )
        return parameter.grad
    zeros = torch.zeros_like(parameter)
    if parameter.requires_grad:
        parameter.grad = zeros
    return zeros
