"""SGD, Adam, AdamW and Muon over one flat vector of all parameters, with the steps of torch.optim and its defaults.

All but Muon are written here, because making one of torch.optim's imports PyTorch's compiler: 1.1 s of CPU time for
each of many workers that start on few cores. Over one vector a step is also a handful of operations, whatever the
number of layers.
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


class Muon(Optimizer):
    """torch.optim.Muon (Jordan et al. 2024) for the matrices of hidden layers, and AdamW for the rest.

    Muon's steps are scaled to the root mean square of AdamW's (Liu et al. 2025, arXiv 2502.16982, section 2.2), so that
    one learning rate fits both.

    Args:
        learning_rate: The learning rate of both.
        matrices: The matrices of hidden layers.
    """

    def __init__(self, learning_rate: float, matrices: Sequence[Matrix]) -> None:
        super().__init__(learning_rate)
        self._matrices = matrices
        self._adam = Adam(learning_rate, ADAMW_DECAY)
        self._held = [torch.nn.Parameter(torch.empty(its.rows, its.columns)) for its in matrices]
        how: dict[str, Any] = {"lr": learning_rate, "adjust_lr_fn": "match_rms_adamw"}
        self._muon = torch.optim.Muon(self._held, **how) if matrices else None
        self._others = torch.empty(0, dtype=torch.bool)

    def step(self, parameters: torch.Tensor, gradient: torch.Tensor) -> None:
        """Move the parameters by one step, in place: hidden matrices by Muon, the others by AdamW."""
        if not len(self._others):
            self._others = torch.ones_like(parameters, dtype=torch.bool)
            for matrix in self._matrices:
                matrix.of(self._others).fill_(False)
        for held, matrix in zip(self._held, self._matrices, strict=True):
            held.data, held.grad = matrix.of(parameters), matrix.of(gradient)
        if self._muon is not None:
            self._muon.step()  # type: ignore[no-untyped-call]
        rest = parameters[self._others]
        self._adam.step(rest, gradient[self._others])
        parameters[self._others] = rest

    def moments(self) -> list[torch.Tensor]:
        """Return AdamW's moments and the matrices' momenta; an empty list before the first step."""
        states = [] if self._muon is None else [self._muon.state[held] for held in self._held]
        return [*self._adam.moments(), *(state["momentum_buffer"] for state in states if state)]

    def learn_at(self, learning_rate: float) -> None:
        """Set the learning rate of later steps."""
        self._adam.learn_at(learning_rate)
        for group in self._muon.param_groups if self._muon is not None else ():
            group["lr"] = learning_rate

    def state_dict(self) -> dict[str, Any]:
        """Return AdamW's state, and the matrices' momenta as one flat tensor, which is empty before the first step."""
        states = [] if self._muon is None else [self._muon.state[held] for held in self._held]
        momenta = [state["momentum_buffer"].flatten() for state in states if state]
        return {**self._adam.state_dict(), "momenta": torch.cat(momenta) if momenta else torch.empty(0)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned: AdamW's, and the matrices' momenta."""
        self._adam.load_state_dict(state)
        momenta, start = state["momenta"], 0
        if self._muon is None or not len(momenta):
            return
        for held, matrix in zip(self._held, self._matrices, strict=True):
            own = Matrix(start, matrix.rows, matrix.columns)
            self._muon.state[held]["momentum_buffer"] = own.of(momenta).clone()
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
