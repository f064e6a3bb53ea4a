"""A scheme around a training loop that stays unchanged: `testbed.schemes.wrap`.

The scheme's strategy is called around the steps of the loop's optimizers (`testbed.sync.strategies.optimizer_steps`).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import fmean
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from testbed.schemes.choice import SchemeChoice
from testbed.schemes.options import Misfit
from testbed.schemes.scheme import Scheme
from testbed.schemes.training import RoundTraining
from testbed.sync import Session, Strategy, SyncError
from testbed.sync.codecs.codec import bytes_of
from testbed.sync.ddp import LocalGradients
from testbed.sync.environment import join_by_environment
from testbed.sync.strategies.optimizer_steps import OptimizerSteps

log = logging.getLogger(__name__)

#: The largest difference, by rounding, between the mean of all members' hash bytes and each member's own, if all are
#: equal. If one member of a thousand differs, the mean of some byte differs by about 0.1.
SAME = 1 / 64


@contextmanager
def wrap(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    scheme: str = "diloco",
    *,
    session: Session | None = None,
    weight: float = 1.0,
    **options: Any,
) -> Iterator[Strategy]:
    """Train with the other members by a scheme, around a training loop that stays unchanged.

        with schemes.wrap(model, optimizer, scheme="diloco", every=32):
            ...                                                     # the training loop, unchanged

    Members must begin with the same parameters and take equally many steps. At the end of the context all members hold
    the same parameters. Gradients may be accumulated, scaled by a GradScaler and clipped, and learning rates scheduled.

    A DistributedDataParallel in the model exchanges neither gradients nor buffers inside the context, and does again
    afterwards. Buffers, such as BatchNorm's running means, stay each member's own.

    Args:
        model: The model. Its parameters that require gradients are synchronized; those of float64 travel as float32.
        optimizer: The optimizer, or several of which each steps once in a step of the training.
        scheme: A scheme with rounds, by the name that an experiment uses, a file `./mine.py`, or an entry point.
        session: The session to use. None joins the run that the environment names (`testbed.sync.environment`), and
            leaves it at the end of the context.
        weight: This member's weight in the mean.
        **options: The scheme's options, as under `sync` in an experiment.

    Yields:
        The scheme's strategy.

    Raises:
        ValueError: On entering, if the scheme can't be used with this model, optimizer, plan or elastic run; the
            message says what to write instead.
        SyncError: On entering, if the member can't join or the members' parameters differ; out of `optimizer.step()`,
            if a round fails.
    """
    choice = SchemeChoice.of(scheme, options)
    optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    check(parameters, optimizers)
    with ExitStack() as stack:
        if session is None:
            session = stack.enter_context(join_by_environment(str(parameters[0].device)))
        strategy = strategy_of(choice, session, parameters, optimizers, weight)
        for module in model.modules():
            if isinstance(module, DistributedDataParallel):
                local = LocalGradients(module)
                stack.callback(local.exchange)
                log.info("%s", local)
        stack.enter_context(OptimizerSteps(strategy, optimizers).counted())
        log.info("%s", described(choice, session, parameters))
        yield strategy
        strategy.settle()


def strategy_of(
    choice: SchemeChoice,
    session: Session,
    parameters: Sequence[torch.Tensor],
    optimizers: Sequence[torch.optim.Optimizer],
    weight: float = 1.0,
) -> Strategy:
    """Return the strategy that synchronizes the parameters.

    Raises:
        ValueError: The plan in force, an elastic run or the optimizers do not fit the scheme.
        SyncError: The members do not all hold the same parameters.
    """
    choice.check(session.plan, session.elastic)
    _check_inner(choice.scheme, optimizers)
    check_alike(session, parameters)
    if any(parameter.dtype == torch.float64 for parameter in parameters):
        log.warning(
            "parameters of float64 travel as float32, so that each round leaves them 7 digits; write float32, or "
            "session.allreduce, which keeps float64"
        )
    training = RoundTraining(
        session,
        parameters,
        weight,
        steps=lambda: session.plan.steps.get(session.name),
        mean_steps=lambda: fmean(session.plan.steps.values()) if session.plan.steps else None,
        moments=lambda: moments_of(parameters, optimizers),
    )
    strategy: Strategy = choice.scheme.algorithm.build(choice.options, training)
    return strategy


#: The names of Adam's moments in its state.
MOMENTS = ("exp_avg", "exp_avg_sq")


def moments_of(parameters: Sequence[torch.Tensor], optimizers: Sequence[torch.optim.Optimizer]) -> list[torch.Tensor]:
    """Return Adam's first and second moment of each parameter; none of another optimizer.

    They are zeros, which nothing keeps, for a parameter that only other members may have stepped: a GradScaler may
    leave the first steps out at one member.
    """
    found = [
        next((its.state[one] for its in optimizers if "exp_avg_sq" in its.state.get(one, {})), None)
        for one in parameters
    ]
    kinds = torch.optim.Adam | torch.optim.AdamW | torch.optim.NAdam | torch.optim.RAdam
    if not any(found) and not any(isinstance(its, kinds) for its in optimizers):
        return []
    moments: list[torch.Tensor] = []
    for parameter, state in zip(parameters, found, strict=True):
        moments += (state[moment] if state else torch.zeros_like(parameter) for moment in MOMENTS)
    return moments


def described(choice: SchemeChoice, session: Session, parameters: Sequence[torch.Tensor]) -> str:
    """Return a line for the log: the member, its parameters, the other members and the scheme."""
    elements = sum(parameter.numel() for parameter in parameters)
    return f"{session.name} trains {elements:,} parameters with {', '.join(session.members)} by {choice}"


def check(parameters: Sequence[torch.Tensor], optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Raise ValueError where a scheme can't follow the steps of these optimizers, or synchronize these parameters."""
    for optimizer in optimizers:
        kind = type(optimizer)
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ValueError(
                f"{kind.__name__} is not a torch.optim.Optimizer, so its steps can't be followed: give one that is"
            )
        if kind.__module__.startswith("torch.distributed."):
            raise ValueError(
                f"{kind.__name__} exchanges parameters in its own steps; write instead: the optimizer inside it"
            )
    if not optimizers or not parameters:
        raise ValueError("nothing is trained: give an optimizer, and a model with parameters that require gradients")
    devices = {str(parameter.device) for parameter in parameters}
    if len(devices) > 1:
        raise ValueError(f"parameters are on {', '.join(sorted(devices))}; write instead: all on one device")
    for parameter in parameters:
        if type(parameter.data) is not torch.Tensor or getattr(parameter, "_is_flat_param", False):
            raise ValueError(
                "parameters are sharded (FSDP, DTensor), so no member has all of them; write instead: a whole "
                "model at each member, alone or in DistributedDataParallel"
            )
        if not parameter.is_floating_point():
            raise ValueError(
                f"parameters of {parameter.dtype} can't be averaged; write instead: parameters of a real float type"
            )


def _check_inner(scheme: Scheme, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Raise Misfit if PyTorch's own optimizers are not those that the scheme works with."""
    kinds = [type(optimizer) for optimizer in optimizers]
    names = {kind.__name__.lower() for kind in kinds}
    known = all(kind.__module__.startswith("torch.optim.") for kind in kinds)
    if not known or not scheme.inner:
        return
    if isinstance(scheme.inner, str):
        if scheme.inner not in names:
            rule = f"the members of {scheme.name} step by {scheme.inner}, not by {' and '.join(sorted(names))}"
            raise Misfit("optimizer", rule, f"torch.optim.{scheme.inner.capitalize()}, alone or beside others")
    elif others := sorted(names - {*scheme.inner} - {"nadam", "radam"}):  # these two have Adam's moments
        rule = f"{scheme.name} does not average the moments of {' and '.join(others)}"
        raise Misfit("optimizer", rule, f"one of torch.optim: {', '.join(scheme.inner)}")


def check_alike(session: Session, parameters: Sequence[torch.Tensor]) -> None:
    """Compare the members' parameters by a round of 32 numbers. Raises SyncError where they differ."""
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
            f"{session.name} starts with other parameters than the other members: start all from the same ones, by one "
            "seed (torch.manual_seed), one checkpoint, or DistributedDataParallel"
        )
