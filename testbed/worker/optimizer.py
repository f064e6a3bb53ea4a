"""SGD, Adam, AdamW and Muon over one flat vector of all parameters, with the steps of torch.optim and its defaults.

They are written here, because making one of torch.optim's imports PyTorch's compiler: 1.1 s of CPU time for each of
many workers that start on few cores. Over one vector a step is also a handful of operations, whatever the number of
layers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch


class Optimizer(ABC):
    """Changes parameters in place, by their gradient. This base keeps nothing of its steps."""

    def __init__(self, learning_rate: float) -> None:
        self._learning_rate = learning_rate

    @abstractmethod
    def step(self, parameters: torch.Tensor, gradient: torch.Tensor) -> None:
        """Move the parameters by one step, in place. Both tensors are flat and of the same length."""

    def moments(self) -> list[torch.Tensor]:
        """Return the tensors that the optimizer keeps of its steps; their shapes follow from the number of steps."""
        return []

    def learn_at(self, learning_rate: float) -> None:
        """Set the learning rate of later steps."""
        self._learning_rate = learning_rate

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the next step depends on, beside the parameters."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027 (an optimizer may keep nothing)
        """Restore a state that `state_dict` returned."""


class Sgd(Optimizer):
    """Stochastic gradient descent: x ← x − lr·g."""

    def step(self, parameters: torch.Tensor, gradient: torch.Tensor) -> None:
        """Move the parameters against the gradient, in place: x ← x − lr·g."""
        parameters.add_(gradient, alpha=-self._learning_rate)


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015, algorithm 1); with `decay`, AdamW (Loshchilov and Hutter 2019)."""

    BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8

    def __init__(self, learning_rate: float, decay: float = 0.0) -> None:
        super().__init__(learning_rate)
        self._decay = decay
        self._steps = 0
        self._mean = torch.empty(0)
        self._square = torch.empty(0)

    def step(self, parameters: torch.Tensor, gradient: torch.Tensor) -> None:
        """Move the parameters by one step of Adam, in place; with `decay`, of AdamW."""
        if not self._steps:
            self._mean, self._square = torch.zeros_like(parameters), torch.zeros_like(parameters)
        self._steps += 1
        if self._decay:
            parameters.mul_(1 - self._learning_rate * self._decay)
        self._mean.lerp_(gradient, 1 - self.BETA1)
        self._square.mul_(self.BETA2).addcmul_(gradient, gradient, value=1 - self.BETA2)
        size = self._learning_rate / (1 - self.BETA1**self._steps)
        spread = (self._square / (1 - self.BETA2**self._steps)).sqrt_().add_(self.EPSILON)
        parameters.addcdiv_(self._mean, spread, value=-size)

    def moments(self) -> list[torch.Tensor]:
        """Return the means of the gradients and of their squares; an empty list before the first step."""
        return [self._mean, self._square] if self._steps else []

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps and both moments."""
        return {"steps": self._steps, "mean": self._mean, "square": self._square}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned: the number of steps and both moments."""
        self._steps, self._mean, self._square = int(state["steps"]), state["mean"], state["square"]


#: The default weight decay of torch.optim.AdamW.
ADAMW_DECAY = 0.01


class Matrix(NamedTuple):
    """The place of a matrix in the flat vector of a model's parameters."""

    #: The index of its first element in the vector.
    start: int
    rows: int
    columns: int

    def of(self, values: torch.Tensor) -> torch.Tensor:
        """Return the matrix as a view of the vector's memory."""
        return values[self.start : self.start + self.rows * self.columns].view(self.rows, self.columns)


#: The defaults of torch.optim.Muon: the momentum and decay, and the steps and coefficients of the iteration that makes
#: a matrix nearly orthogonal.
MOMENTUM, MUON_DECAY = 0.95, 0.1
ITERATIONS, COEFFICIENTS, LEAST_NORM = 5, (3.4445, -4.775, 2.0315), 1e-7
#: The root mean square of AdamW's steps, as a part of the learning rate.
ADAMW_RMS = 0.2


def orthogonal(matrix: torch.Tensor, precision: torch.dtype) -> torch.Tensor:
    """Return nearly the closest matrix with orthogonal rows or columns: singular values 0.5 to 1.5 (Newton–Schulz).

    Args:
        matrix: The matrix, of shape (rows, columns).
        precision: The data type to compute in, which is that of the result.
    """
    first, second, third = COEFFICIENTS
    tall = len(matrix) > matrix.shape[1]
    found = (matrix.T if tall else matrix).to(precision)
    found = found / found.norm().clamp(min=LEAST_NORM)
    for _ in range(ITERATIONS):
        squared = found @ found.T
        found = torch.addmm(found, torch.addmm(squared, squared, squared, beta=second, alpha=third), found, beta=first)
    return found.T if tall else found


class Muon(Optimizer):
    """Muon (Jordan et al. 2024) for the matrices of hidden layers, and AdamW for the rest.

    Muon's steps are scaled to the root mean square of AdamW's (Liu et al. 2025, arXiv 2502.16982, section 2.2), so that
    one learning rate fits both.

    Args:
        learning_rate: The learning rate of both.
        matrices: The matrices of hidden layers.
        precision: The data type in which matrices are made orthogonal. None takes bfloat16 on a GPU, as torch.optim
            does, and float32 on a CPU: many multiply bfloat16 slowly, and a step over a matrix of 128 by 512 elements
            took 88 ms.
    """

    def __init__(self, learning_rate: float, matrices: Sequence[Matrix], precision: torch.dtype | None = None) -> None:
        super().__init__(learning_rate)
        self._matrices = matrices
        self._precision = precision
        self._adam = Adam(learning_rate, ADAMW_DECAY)
        self._momenta: list[torch.Tensor] = []
        self._others = torch.empty(0, dtype=torch.bool)

    def step(self, parameters: torch.Tensor, gradient: torch.Tensor) -> None:
        """Move the parameters by one step, in place: hidden matrices by Muon, the others by AdamW."""
        if not len(self._others):
            self._others = torch.ones_like(parameters, dtype=torch.bool)
            for matrix in self._matrices:
                matrix.of(self._others).fill_(False)
        if not self._momenta:
            self._momenta = [torch.zeros_like(matrix.of(gradient)) for matrix in self._matrices]
        precision = self._precision or (torch.bfloat16 if parameters.is_cuda else torch.float32)
        for momentum, matrix in zip(self._momenta, self._matrices, strict=True):
            values, own = matrix.of(parameters), matrix.of(gradient)
            momentum.lerp_(own, 1 - MOMENTUM)
            direction = orthogonal(own.lerp(momentum, MOMENTUM), precision)  # Nesterov's
            values.mul_(1 - self._learning_rate * MUON_DECAY)
            values.add_(direction, alpha=-self._learning_rate * ADAMW_RMS * max(matrix.rows, matrix.columns) ** 0.5)
        rest = parameters[self._others]
        self._adam.step(rest, gradient[self._others])
        parameters[self._others] = rest

    def moments(self) -> list[torch.Tensor]:
        """Return AdamW's moments and the matrices' momenta; an empty list before the first step."""
        return [*self._adam.moments(), *self._momenta]

    def learn_at(self, learning_rate: float) -> None:
        """Set the learning rate of later steps."""
        super().learn_at(learning_rate)
        self._adam.learn_at(learning_rate)

    def state_dict(self) -> dict[str, Any]:
        """Return AdamW's state, and the matrices' momenta as one flat tensor, which is empty before the first step."""
        momenta = [momentum.flatten() for momentum in self._momenta]
        return {**self._adam.state_dict(), "momenta": torch.cat(momenta) if momenta else torch.empty(0)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned: AdamW's, and the matrices' momenta."""
        self._adam.load_state_dict(state)
        self._momenta, start = [], 0
        for matrix in self._matrices if len(state["momenta"]) else ():
            self._momenta.append(matrix._replace(start=start).of(state["momenta"]).clone())
            start += matrix.rows * matrix.columns


def make(name: str, learning_rate: float, matrices: Sequence[Matrix] = ()) -> Optimizer:
    """Return a new optimizer of this name.

    Args:
        name: `sgd`, `adam`, `adamw` or `muon`.
        learning_rate: The learning rate.
        matrices: The matrices of hidden layers in the flat vector, for `muon`.

    Raises:
        ValueError: There is no optimizer of this name.
    """
    if name == "sgd":
        return Sgd(learning_rate)
    if name == "adam":
        return Adam(learning_rate)
    if name == "adamw":
        return Adam(learning_rate, ADAMW_DECAY)
    if name == "muon":
        return Muon(learning_rate, matrices)
    raise ValueError(f"no such optimizer: {name!r}; there are sgd, adam, adamw and muon")
