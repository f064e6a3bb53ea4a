"""A small regression that members learn together, each from its own data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from testbed import sync
from testbed.plan import Plan
from testbed.protocol import Job
from testbed.schemes.training import RoundTraining
from testbed.sync import Strategy
from testbed.sync.strategies.optimizer_steps import OptimizerSteps
from tests.sync.sessions import run

FEATURES = 12


torch.manual_seed(1)
_MODEL = nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1))


def model() -> nn.Module:
    """Return a model with the same weights for every member. Members are threads, and share PyTorch's seed."""
    return copy.deepcopy(_MODEL)


def batch(member: str, step: int, size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * int(member[1:]) + step)
    inputs = torch.randn(size, FEATURES, generator=generator)
    return inputs, inputs[:, :3].sum(1, keepdim=True).sin()


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1)


def step(net: nn.Module, optimizer: torch.optim.Optimizer, member: str, number: int) -> None:
    """Take a step of an ordinary loop."""
    inputs, targets = batch(member, number)
    optimizer.zero_grad()
    (net(inputs) - targets).square().mean().backward()
    optimizer.step()


@contextmanager
def around(strategy: Strategy, optimizer: torch.optim.Optimizer) -> Iterator[Strategy]:
    """Call a strategy around an optimizer's steps, and let members agree at the end, as `schemes.wrap` does."""
    with OptimizerSteps(strategy, [optimizer]).counted():
        yield strategy
        strategy.settle()


def trained(
    directory: Path, plan: Plan, build: Callable[[RoundTraining], Strategy], steps: int, settings: Job | None = None
) -> dict[str, tuple[torch.Tensor, torch.Tensor, int]]:
    """Take steps of SGD by a strategy at every member.

    Returns each member's parameters after its last step and at the end, and the number of rounds.
    """

    def work(session: sync.Session) -> tuple[torch.Tensor, torch.Tensor, int]:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with around(build(RoundTraining(session, list(net.parameters()), 1.0)), optimizer):
            for number in range(steps):
                step(net, optimizer, session.name, number)
            last = flat(net)
        return last, flat(net), session.rounds

    directory.mkdir(exist_ok=True)
    return run(directory, plan, work, settings)


def by_mean_gradient(steps: int, weights: Mapping[str, float]) -> torch.Tensor:
    """Return the parameters after steps of SGD, each by the weighted mean of the members' gradients."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for number in range(steps):
        optimizer.zero_grad()
        for member, weight in weights.items():
            inputs, targets = batch(member, number)
            loss = (net(inputs) - targets).square().mean() * (weight / sum(weights.values()))
            loss.backward()
        optimizer.step()
    return flat(net)


def flat(net: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
