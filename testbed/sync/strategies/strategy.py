"""What every strategy is: something done before and after each step of an optimizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, overload

from testbed.protocol import FragmentDrift
from testbed.sync.errors import SyncError

if TYPE_CHECKING:
    import torch

    from testbed.sync.codecs import Residual
    from testbed.sync.executor import Work
    from testbed.sync.strategies.drift import Loss


class Reduced(Protocol):
    """What strategies need to know of a round that is over."""

    @property
    def round(self) -> int:
        """Its number."""

    @property
    def epoch(self) -> int:
        """The epoch of the plan it went by."""

    @property
    def whole(self) -> bool:
        """Whether the mean is all members', and not that of this member's group alone."""


class Reducer(Protocol):
    """What strategies need of a session."""

    @overload
    def allreduce(
        self,
        tensor: torch.Tensor,
        weight: float = 1.0,
        residual: Residual | None = None,
        async_op: Literal[False] = False,
    ) -> Reduced: ...
    @overload
    def allreduce(
        self, tensor: torch.Tensor, weight: float = 1.0, residual: Residual | None = None, *, async_op: Literal[True]
    ) -> Work[Any]: ...
    def allreduce(
        self, tensor: torch.Tensor, weight: float = 1.0, residual: Residual | None = None, async_op: bool = False
    ) -> Reduced | Work[Any]:
        """Replace a contiguous float32 tensor of any shape, in place, by the members' weighted mean.

        Args:
            tensor: The tensor, of the same shape at all members.
            weight: This member's weight in the mean.
            residual: What codecs left out of earlier rounds of this tensor; None reduces without codecs.
            async_op: Return at once. The tensor holds the mean after the returned work's `wait`.
        """
        raise NotImplementedError


class Handle(Protocol):
    """A hook that is in place."""

    def remove(self) -> None:
        """Take it away."""


class Steps(Protocol):
    """What strategies need of an optimizer; `torch.optim.Optimizer` has both."""

    def register_step_pre_hook(self, hook: Callable[..., None]) -> Handle:
        """Have `hook` called before every step."""

    def register_step_post_hook(self, hook: Callable[..., None]) -> Handle:
        """Have `hook` called after every step."""


class Strategy(ABC):
    """Synchronizes a model around its optimizer's steps. All members must take equally many.

    A context manager: inside it the optimizer's own hooks do the work, and the training loop is as it would be
    alone. Left without an error, it has the members `settle`. A loop whose optimizer has no hooks makes it with
    None and calls `before_step`, `after_step` and `settle` itself. `weight` is this member's, say its samples per
    step, and may be changed between steps. Whatever a round can raise comes out of the step: a SyncError that
    names peer, epoch and round.
    """

    def __init__(self, optimizer: Steps | None, weight: float) -> None:
        self.weight = weight
        self._optimizer = optimizer
        self._handles: list[Handle] = []

    def before_step(self) -> None:  # noqa: B027 (nothing to do is a strategy's right)
        """The gradients are there, the optimizer has not used them yet."""

    def after_step(self) -> None:  # noqa: B027
        """The optimizer has changed the parameters."""

    def settle(self) -> None:  # noqa: B027
        """Synchronize what is not yet; all members hold the same parameters then."""

    @abstractmethod
    def over(self, rounds: int, taken: int) -> bool:
        """Whether so many steps `taken` have `rounds` rounds, those included that `settle` needs to have all members
        agree; as long as nothing changes how many that takes."""

    def watch(self, loss: Loss, every: int) -> None:  # noqa: B027 (where members never differ there is no drift)
        """Measure from now on how far this member stands from the mean when all merge, and in each `every`-th of these
        merges by the `loss`, which says it at the parameters as they are, what the merge does to it."""

    def drift(self) -> tuple[FragmentDrift, ...]:
        """What was measured in the rounds among all that are over since the last call."""
        return ()

    @property
    def together(self) -> bool:
        """Whether, between two steps, all members hold the same parameters, and nothing is under way."""
        return False

    def progress(self, rounds: int, taken: int) -> int:
        """How far training is after so many rounds and steps `taken`, in what a job's `rounds` count."""
        return rounds

    def agreed(self) -> AbstractContextManager[None]:
        """While inside, the parameters are what all members last agreed on: what there is to evaluate. No step may be
        taken there."""
        return nullcontext()

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that the next round depends on beside model and optimizer: plain values and tensors."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned, with model and optimizer restored already."""

    def handover(self) -> dict[str, Any]:
        """`state_dict` for another member, that begins where this one is. What codecs left out stays this one's."""
        return self.state_dict()

    def __enter__(self) -> Self:
        if self._optimizer is not None:
            self._handles = [
                self._optimizer.register_step_pre_hook(lambda *_: self.before_step()),
                self._optimizer.register_step_post_hook(lambda *_: self.after_step()),
            ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        if kind is None:
            self.settle()


def check_whole(reduced: Reduced) -> None:
    """SyncError when the plan reduced inside groups alone: members whose gradients differ would part for good."""
    if not reduced.whole:
        raise SyncError(
            f"round {reduced.round}, epoch {reduced.epoch}: the plan reduces inside groups, and gradients must be all "
            "members'; use local_sgd, or a policy whose plans have no groups",
            rule="groups",
            round=reduced.round,
            epoch=reduced.epoch,
        )
