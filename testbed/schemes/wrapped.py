"""A scheme around a training loop that stays as it is: what `testbed.sync.wrap` makes."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from testbed.schemes.choice import SchemeChoice
from testbed.schemes.optimizer_steps import OptimizerSteps
from testbed.schemes.training import RoundTraining
from testbed.sync import Session, Strategy, SyncError
from testbed.sync.codecs.memory import bytes_of
from testbed.sync.environment import join_by_environment
from testbed.sync.local_gradients import local_gradients

log = logging.getLogger(__name__)

#: What floating-point sums of equal bytes may be off; one member of a thousand that differs is 0.1 off in some byte.
SAME = 1 / 64


@contextmanager
def wrapped(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    scheme: str,
    options: Mapping[str, Any],
    session: Session | None,
    weight: float,
) -> Iterator[Strategy]:
    """See `testbed.sync.wrap`."""
    choice = SchemeChoice.of(scheme, options)
    optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    check(parameters, optimizers)
    with ExitStack() as stack:
        if session is None:
            session = stack.enter_context(join_by_environment(str(parameters[0].device)))
        strategy = strategy_of(choice, session, parameters, weight)
        for module in model.modules():
            if isinstance(module, DistributedDataParallel):
                log.info("%s", stack.enter_context(local_gradients(module)))
        stack.enter_context(OptimizerSteps(strategy, optimizers).counted())
        log.info("%s", described(choice, session, parameters))
        yield strategy
        strategy.settle()


def strategy_of(
    choice: SchemeChoice, session: Session, parameters: Sequence[torch.Tensor], weight: float = 1.0
) -> Strategy:
    """What synchronizes the parameters. ValueError where the plan in force is not for the scheme, SyncError where not
    all members have the same parameters."""
    plan = session.plan
    choice.check_plan(plan.codec, bool(plan.groups))
    check_alike(session, parameters)
    training = RoundTraining(session, parameters, weight, steps=lambda: session.plan.steps.get(session.name))
    strategy: Strategy = choice.scheme.algorithm.build(choice.options, training)
    return strategy


def described(choice: SchemeChoice, session: Session, parameters: Sequence[torch.Tensor]) -> str:
    """What is done, for a log."""
    elements = sum(parameter.numel() for parameter in parameters)
    return f"{session.name} trains {elements:,} parameters with {', '.join(session.members)} by {choice}"


def check(parameters: Sequence[torch.Tensor], optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """ValueError where a scheme can't be around these optimizers' steps, or synchronize these parameters."""
    for optimizer in optimizers:
        kind = type(optimizer)
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ValueError(
                f"{kind.__name__} is no torch.optim.Optimizer, whose steps can be seen; write instead: one"
            )
        if kind.__module__.startswith("torch.distributed."):
            raise ValueError(
                f"{kind.__name__} exchanges parameters in its own steps; write instead: the optimizer that it is around"
            )
    if not optimizers or not parameters:
        raise ValueError("nothing is trained: give an optimizer, and a model with parameters that require gradients")
    devices = {str(parameter.device) for parameter in parameters}
    if len(devices) > 1:
        raise ValueError(f"parameters are on {', '.join(sorted(devices))}; write instead: all on one device")
    for parameter in parameters:
        if type(parameter.data) is not torch.Tensor or getattr(parameter, "_is_flat_param", False):
            raise ValueError(
                "parameters are sharded (FSDP, DTensor), so that no member has all of them; write instead: a model "
                "that each member has whole, by itself or in DistributedDataParallel"
            )
        if not parameter.is_floating_point():
            raise ValueError(f"parameters of {parameter.dtype} have no mean here; write instead: real ones")


def check_alike(session: Session, parameters: Sequence[torch.Tensor]) -> None:
    """A round of 32 numbers: SyncError where not all members hold the same parameters."""
    whole = hashlib.sha256()
    for parameter in parameters:
        held = parameter.detach().cpu().contiguous()
        whole.update(str(held.shape).encode() + bytes_of(held))
    own = torch.tensor(list(whole.digest()), dtype=torch.float32)
    mean = own.clone()
    while not session.allreduce(mean).whole:
        mean.copy_(own)
    if (mean - own).abs().max() > SAME:
        raise SyncError(
            f"{session.name} begins with other parameters than the other members: have all begin with the same, by one "
            "seed (torch.manual_seed), one checkpoint, or DistributedDataParallel"
        )
