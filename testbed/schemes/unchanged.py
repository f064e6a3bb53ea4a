"""A scheme around the steps of an unchanged script: TESTBED_SCHEME=diloco:every=32.

    torch is imported                             ▸ `install`, which only waits for the following
    a model is put into DistributedDataParallel   ▸ its gradients stay local
    an optimizer's first step                     ▸ the member joins; the scheme is around this and all further steps,
                                                    also where a GradScaler leaves a step out
    the script ends                               ▸ the member leaves

A script does not say where its training ends, so nothing is synchronized at that point: changes since the last round
stay the member's own.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import ExitStack
from functools import wraps
from typing import Any

import torch
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from testbed.schemes.choice import SchemeChoice


class UnchangedScript:
    """The effect of TESTBED_SCHEME in one process. It reports on standard error."""

    def __init__(self, choice: SchemeChoice, text: str) -> None:
        self._choice = choice
        self._text = text
        self._optimizer: torch.optim.Optimizer | None = None
        self._stack = ExitStack()

    @property
    def begun(self) -> bool:
        """True if the member has joined, and the scheme is around the optimizer's steps."""
        return self._optimizer is not None

    def keep_local(self, model: DistributedDataParallel) -> None:
        """Keep a model's gradients local from now on."""
        from testbed.sync.ddp import LocalGradients

        self._say(str(LocalGradients(model)))

    def before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Begin at the first step of the script's optimizer. Raises ValueError at the first step of a second one."""
        if self._optimizer is None:
            self._begin(optimizer)
            self._optimizer = optimizer
        elif self._optimizer is not optimizer:
            raise ValueError(
                f"TESTBED_SCHEME={self._text}: the script steps a second optimizer, and only the first one's "
                "parameters are synchronized; write instead: testbed.schemes.wrap around the loop, with both optimizers"
            )

    def _begin(self, optimizer: torch.optim.Optimizer) -> None:
        from testbed.schemes.wrapped import check, described, strategy_of
        from testbed.sync.environment import join_by_environment
        from testbed.sync.strategies.optimizer_steps import OptimizerSteps

        every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        parameters = [parameter for parameter in every if parameter.requires_grad]
        check(parameters, [optimizer])
        session = self._stack.enter_context(join_by_environment(str(parameters[0].device)))
        self._pid = os.getpid()
        atexit.register(self.end)
        strategy = strategy_of(self._choice, session, parameters, [optimizer])
        steps = OptimizerSteps(strategy, [optimizer])
        self._stack.enter_context(steps.counted())  # its hooks are called in this step already
        begun = session.rounds
        self._stack.callback(lambda: self._say(f"{steps.taken} steps, {session.rounds - begun} rounds"))
        self._say(described(self._choice, session, parameters))

    def end(self) -> None:
        """Leave the run, with the error that ended the script, if there was one. A forked child leaves it alone."""
        if os.getpid() != self._pid:
            return
        error = getattr(sys, "last_value", None)
        self._stack.__exit__(type(error) if error else None, error, None)

    def _say(self, what: str) -> None:
        print(f"TESTBED_SCHEME={self._text}: {what}", file=sys.stderr, flush=True)


def install(text: str) -> None:
    """Put the scheme around the steps of this process. Raises ValueError where the text names no scheme."""
    script = UnchangedScript(SchemeChoice.parse(text), text)
    register_optimizer_step_pre_hook(script.before_step)
    begin_with_scalers(script)
    make = DistributedDataParallel.__init__

    @wraps(make)
    def made(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        script.keep_local(self)

    DistributedDataParallel.__init__ = made  # type: ignore[method-assign]


def begin_with_scalers(script: UnchangedScript) -> None:
    """Make the script's training begin at the first step of a GradScaler, also where the scaler leaves it out.

    Gradients overflow in the first steps more often than later, and at some members alone. A member that began one step
    later would take one step less than the others, which would then wait for its last round.
    """
    step = GradScaler.step

    # Without `wraps`, whose mark says that the steps of a scaler are counted already (strategies.optimizer_steps).
    def counted(self: GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if script.begun:
            return step(self, optimizer, *args, **kwargs)
        script.before_step(optimizer)
        return GradScaler.step(self, optimizer, *args, **kwargs)  # the step that the scheme counts

    GradScaler.step = counted  # type: ignore[method-assign]
