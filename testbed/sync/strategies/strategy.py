"""The base class of strategies: actions before and after each step of an optimizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, overload

from testbed.protocol import FragmentDrift
from testbed.sync.errors import SyncError

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

    from testbed.sync.allreduce import RoundResult
    from testbed.sync.codecs import Residual
    from testbed.sync.executor import Work
    from testbed.sync.strategies.fragment import Loss


class Reducer(Protocol):
    """The part of a session that strategies need."""

    #: The name of this member.
    name: str

    @property
    def members(self) -> tuple[str, ...]:
        """The names of all members, in the same order at each."""

    @overload
    def allreduce(
        self,
        tensor: torch.Tensor,
        weight: float = 1.0,
        residual: Residual | None = None,
        async_op: Literal[False] = False,
    ) -> RoundResult: ...
    @overload
    def allreduce(
        self, tensor: torch.Tensor, weight: float = 1.0, residual: Residual | None = None, *, async_op: Literal[True]
    ) -> Work[RoundResult]: ...
    def allreduce(
        self, tensor: torch.Tensor, weight: float = 1.0, residual: Residual | None = None, async_op: bool = False
    ) -> RoundResult | Work[RoundResult]:
        """Replace a contiguous float32 tensor of any shape, in place, by the members' weighted mean.

        Args:
            tensor: The tensor, of the same shape at all members.
            weight: This member's weight in the mean.
            residual: The errors of codecs in earlier rounds of this tensor; None reduces without codecs.
            async_op: Return at once. The tensor holds the mean after the returned work's `wait`.
        """
        raise NotImplementedError


class Strategy(ABC):
    """Synchronizes a model around its optimizer's steps. All members must take equally many steps.

    A context manager: inside the context the optimizer's hooks call the strategy, and the training loop is the same as
    without it. A step that a GradScaler skips counts. At the end of the context, unless there was an error, `settle`
    makes the members agree. A loop whose optimizer has no hooks passes None and calls `before_step`, `after_step` and
    `settle` itself.

    A failed round raises a SyncError out of the step; it names the peer, the epoch and the round.

    Args:
        optimizer: The optimizer whose steps count, or None.
        weight: This member's weight in the mean, such as its samples a step.

    Attributes:
        weight: The weight of the next round; it may be changed between steps.
    """

    def __init__(self, optimizer: Optimizer | None, weight: float) -> None:
        self.weight = weight
        self._optimizer = optimizer
        self._hooked = ExitStack()

    def before_step(self) -> None:  # noqa: B027 (a strategy may do nothing here)
        """Change the gradients before the optimizer uses them; called before each of its steps."""

    def after_step(self) -> None:  # noqa: B027
        """Change the parameters after the optimizer has changed them; called after each of its steps."""

    def settle(self) -> None:  # noqa: B027
        """Synchronize all changes, so that all members hold the same parameters."""

    @abstractmethod
    def over(self, rounds: int, taken: int) -> bool:
        """Return whether training may end after some steps: they and a final `settle` make enough rounds.

        Args:
            rounds: The number of rounds to train for.
            taken: The number of steps taken.
        """

    def watch(self, loss: Loss, every: int) -> None:  # noqa: B027 (members that never differ have no drift)
        """Measure drift from now on: this member's distance from the mean, in each global round.

        Args:
            loss: Returns the loss at the current parameters; called before and after a merge.
            every: The loss is measured in each `every`-th merge, because it costs a forward pass each time.
        """

    def drift(self) -> tuple[FragmentDrift, ...]:
        """Return the drift measured in the global rounds since the last call, an entry for each fragment and round."""
        return ()

    @property
    def elastic_misfit(self) -> str:
        """The reason why members can't leave and join under this strategy; empty if they can."""
        return ""

    @property
    def together(self) -> bool:
        """True if all members hold the same parameters and no round is under way; asked between two steps."""
        return False

    def progress(self, rounds: int, taken: int) -> int:
        """Return the progress of training after `rounds` rounds and `taken` steps, in the unit of a job's `rounds`."""
        return rounds

    def agreed(self) -> AbstractContextManager[None]:
        """Return a context in which the parameters are those that all members last agreed on, for evaluation.

        No step may be taken inside it.
        """
        return nullcontext()

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return all that the next round depends on beside the model and the optimizer, as plain values and tensors."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned, after the model and the optimizer were restored."""

    def handover(self) -> dict[str, Any]:
        """Return the state for a member that joins and begins here: `state_dict` without this member's residuals."""
        return self.state_dict()

    def __enter__(self) -> Self:
        if self._optimizer is not None:
            from testbed.sync.strategies.optimizer_steps import OptimizerSteps  # it loads PyTorch

            steps = OptimizerSteps(self, [self._optimizer], fixed=False)
            self._hooked.enter_context(steps.counted())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hooked.close()
        if kind is None:
            self.settle()


def check_whole(reduced: RoundResult) -> None:
    """Check that a mean of gradients is over all members: members that step by different gradients would diverge.

    Raises:
        SyncError: The plan reduced inside groups.
    """
    if not reduced.whole:
        raise SyncError(
            f"round {reduced.round}, epoch {reduced.epoch}: the plan reduces inside groups, and gradients need the "
            "mean of all members: use local_sgd, or a policy whose plans have no groups",
            rule="groups",
            round=reduced.round,
            epoch=reduced.epoch,
        )
