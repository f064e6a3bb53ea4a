"""A part of a model that is synchronized as a whole: the values that all members agreed on, and the changes since."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from math import isfinite
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from testbed.protocol import FragmentDrift
from testbed.sync import flat
from testbed.sync.codecs import Residual
from testbed.sync.executor import Work
from testbed.sync.strategies.periodic import Outer
from testbed.sync.strategies.strategy import Reducer

#: The number of random sums that a member reports of a fragment.
SUMS = 64

#: Returns the loss of the last batch at the current parameters; None if there was no batch.
Loss = Callable[[], float | None]


@dataclass
class DriftMeter:
    """Measures a fragment's drift in global rounds: members' distances from the mean, and a merge's effect on the loss.

    A member knows its own change Δ_i and learns the mean Δ̄, so it knows its distance from the mean, ‖Δ_i - Δ̄‖. No
    member knows the distance of a group's mean. So each member reports SUMS random sums of Δ_i - Δ̄, with the same signs
    at all members (a sketch with one sign an element: Charikar, Chen and Farach-Colton 2002). Sums are linear: the
    sketch of a group's mean is the mean of its members' sketches, and its length is that of the vector within a tenth
    (standard deviation 1/√(2 · SUMS) = 9 % of it), for 64 numbers a fragment in place of the fragment.

    The meter keeps a copy of the fragment in memory.
    """

    #: The fragment's number.
    fragment: int
    loss: Loss
    #: The loss is measured in each `every`-th merge, because it costs a forward pass before the merge and one after it.
    every: int
    #: The results since they were last taken.
    found: list[FragmentDrift] = field(default_factory=list)
    _own: Tensor | None = None
    _merges: int = 0

    def sent(self, change: Tensor) -> None:
        """Copy the change that this member contributes to a round, to compare it with the members' mean later."""
        if self._own is None:
            self._own = torch.empty_like(change)
        self._own.copy_(change)

    @contextmanager
    def merging(self, mean: Tensor, weight: float) -> Iterator[None]:
        """Measure a merge: inside the context the caller moves the parameters by the `mean` change of all members.

        A merge of a training that diverged has no result, because a report carries finite numbers alone.
        """
        assert self._own is not None
        apart = self._own.sub_(mean)
        length, moved, sums = float(apart.norm()), float(mean.norm()), sketch(apart)
        asks = self._merges % self.every == 0
        self._merges += 1
        before = self.loss() if asks else None
        yield
        after = self.loss() if asks else None
        if all(map(isfinite, (length, moved, *sums))):
            self.found.append(FragmentDrift(self.fragment, weight, length, moved, sums, before, after))


def sketch(values: Tensor) -> tuple[float, ...]:
    """Return SUMS sums of the values with random signs, which depend on the number of values alone."""
    signed = functional.pad(values * _signs(len(values)).to(values.device), (0, -len(values) % SUMS))
    return tuple(float(f"{value:.4g}") for value in signed.view(-1, SUMS).sum(0).tolist())


@lru_cache(maxsize=64)
def _signs(count: int) -> Tensor:
    draw = torch.Generator("cpu").manual_seed(count)
    drawn = torch.randint(0, 2, (count,), generator=draw, dtype=torch.int8, device="cpu")
    return drawn.mul_(2).sub_(1)


class Fragment:
    """Some of a model's parameters, with their values when all members last agreed (the anchor).

    Attributes:
        drift: Measures the drift of this fragment, if asked for.
        begun: The step at which the last reduction began.
        agreed: The step whose parameters all members hold.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], onward: bool, error_decay: float = 1.0) -> None:
        """Take the current parameters as the anchor.

        Args:
            parameters: The tensors, float32, on one device.
            onward: Keep the changes made while a reduction runs, by adding them to its result.
            error_decay: See Residual.
        """
        self._parameters = parameters
        self._sent = flat.room(parameters) if onward else None
        self._change = flat.room(parameters)
        self._momentum = flat.room(parameters)
        self._anchor = flat.room(parameters)
        #: The last round's result at this member: the anchor after a global round, the group's mean after a round
        #: inside a group; mixed with the member's own values if `finish` was given a `mix`.
        self._start = flat.room(parameters)
        self._residual = Residual(error_decay)
        self._work: Work[Any] | None = None
        self._weight = 1.0
        self.drift: DriftMeter | None = None
        self.begun = 0
        self.agreed = 0
        self.set_anchor()

    def set_anchor(self) -> None:
        """Take the current parameters, which all members hold, as the anchor."""
        flat.gather(self._parameters, self._anchor)
        self._start.copy_(self._anchor)

    def pull(self, part: float) -> None:
        """Move the parameters towards the last round's result, by the fraction `part` of the distance.

        After a round inside a group that result is the group's mean, and not the anchor. Source: FedProx, Li et al.
        2020.
        """
        flat.scatter(flat.gather(self._parameters, self._change).lerp_(self._start, part), self._parameters)

    def at_anchor(self) -> AbstractContextManager[None]:
        """Set the parameters to the anchor inside the context."""
        return flat.showing(self._anchor, self._parameters)

    def begin(self, reducer: Reducer, weight: float, step: int, scale: float) -> None:
        """Start reducing the parameters' change since the anchor.

        Args:
            reducer: The session.
            weight: This member's weight in the mean.
            step: The number of the last step.
            scale: The part of the change made since the last round is multiplied by it.
        """
        self.begun = step
        if self._sent is not None:
            flat.gather(self._parameters, self._sent)
        torch.sub(self._start, flat.gather(self._parameters, self._change), out=self._change)
        self._change.mul_(scale).add_(self._anchor).sub_(self._start)
        if self.drift is not None:
            self.drift.sent(self._change)
            self._weight = weight
        self._work = reducer.allreduce(self._change, weight, self._residual, async_op=True)

    @property
    def under_way(self) -> bool:
        """True while a reduction runs."""
        return self._work is not None

    def finish(self, outer: Outer, mix: float) -> None:
        """Wait for the mean change, and move the parameters by it.

        After a global round the anchor moves by the outer optimizer's step. After a round inside a group it stays, so
        that the groups' changes since can be averaged later.

        Args:
            outer: The outer optimizer.
            mix: The fraction of their current values that the parameters keep, in [0, 1]. A fragment made with
                `onward` keeps the changes since the reduction began instead.
        """
        assert self._work is not None
        whole: bool = self._work.wait().whole
        self._work = None
        meter = self.drift if whole else None
        with meter.merging(self._change, self._weight) if meter else nullcontext():
            self._move(outer, mix, whole)

    def _move(self, outer: Outer, mix: float, whole: bool) -> None:
        if whole:
            self.agreed = self.begun
            outer.step(self._anchor, self._change, self._momentum)
            target = self._anchor
        else:
            target = self._anchor - self._change
        here = flat.gather(self._parameters, self._change)
        if mix and self._sent is None:
            target = torch.lerp(target, here, mix)
        self._start.copy_(target)
        if self._sent is not None:
            target = target + here.sub_(self._sent)
        flat.scatter(target, self._parameters)

    def state_dict(self) -> dict[str, Any]:
        """Return the anchor, the outer momentum and the residual."""
        return {
            "begun": self.begun,
            "agreed": self.agreed,
            "anchor": self._anchor.clone(),
            "start": self._start.clone(),
            "momentum": self._momentum.clone(),
            "residual": self._residual.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self.begun = int(state["begun"])
        self.agreed = int(state["agreed"])
        self._anchor.copy_(state["anchor"])
        self._start.copy_(state["start"])
        self._momentum.copy_(state["momentum"])
        self._residual.restore(state["residual"])


def cut(parameters: Sequence[torch.Tensor], parts: int) -> list[list[torch.Tensor]]:
    """Cut a list of tensors into `parts` lists of about equal size, in order.

    Raises:
        ValueError: There are fewer tensors than parts.
    """
    if len(parameters) < parts:
        raise ValueError(f"{len(parameters)} parameters can't make {parts} fragments; write at most {len(parameters)}")
    total = sum(parameter.numel() for parameter in parameters)
    runs: list[list[torch.Tensor]] = [[]]
    filled = 0
    for left, parameter in zip(range(len(parameters), 0, -1), parameters, strict=True):
        missing = parts - len(runs)
        full = filled + parameter.numel() / 2 > total * len(runs) / parts
        if runs[-1] and missing and (full or left == missing):
            runs.append([])
        runs[-1].append(parameter)
        filled += parameter.numel()
    return runs
