"""A part of a model that is synchronized as one: where all members agreed that it was, and what changed since."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from testbed.sync import flat
from testbed.sync.codecs import Residual
from testbed.sync.executor import Work
from testbed.sync.outer import Outer
from testbed.sync.strategies.drift import DriftMeter
from testbed.sync.strategies.strategy import Reducer


class Fragment:
    """Some of a model's parameters, where all members agreed they were (the `anchor`), and the last round (`start`)."""

    def __init__(self, parameters: Sequence[torch.Tensor], onward: bool, error_decay: float = 1.0) -> None:
        """`onward`: what has changed since a reduction was begun is added to where it leads. `error_decay`: see
        Residual."""
        self._parameters = parameters
        self._sent = flat.room(parameters) if onward else None
        self._change = flat.room(parameters)
        self._momentum = flat.room(parameters)
        self._anchor = flat.room(parameters)
        self._start = flat.room(parameters)
        self._residual = Residual(error_decay)
        self._work: Work[Any] | None = None
        self._weight = 1.0
        self.drift: DriftMeter | None = None  # follows it, where somebody wants to know
        self.begun = 0  # the step of the last reduction
        self.agreed = 0  # the step whose parameters all members hold
        self.hold()

    def hold(self) -> None:
        """Take the parameters as they are for agreed upon."""
        flat.gather(self._parameters, self._anchor)
        self._start.copy_(self._anchor)

    def pull(self, part: float) -> None:
        """Move the parameters by a part of their way back to where the last round left them."""
        flat.scatter(flat.gather(self._parameters, self._change).lerp_(self._start, part), self._parameters)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """The parameters are the anchor's while inside."""
        here = flat.gather(self._parameters, flat.room(self._parameters))
        flat.scatter(self._anchor, self._parameters)
        yield
        flat.scatter(here, self._parameters)

    def begin(self, reducer: Reducer, weight: float, step: int, scale: float) -> None:
        """Send off what changed since the anchor, as it is after `step`: of it, what is new since the last round
        `scale` times."""
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
        """Whether a reduction was begun and not finished."""
        return self._work is not None

    def finish(self, outer: Outer, mix: float) -> bool:
        """Wait for the mean change, and move the parameters by it from the anchor: all the way but `mix`, or on from
        there by what they have changed meanwhile.

        If the mean is all members' the anchor moves along, by the outer optimizer's step. If it is a group's, the
        anchor stays where all agreed, so that what the groups have changed since can be averaged later on. Returns
        whether it was all members'.
        """
        assert self._work is not None
        whole: bool = self._work.wait().whole
        self._work = None
        meter = self.drift if whole else None
        with meter.merging(self._change, self._weight) if meter else nullcontext():
            self._move(outer, mix, whole)
        return whole

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
        """Anchor, outer momentum, residual."""
        return {
            "begun": self.begun,
            "agreed": self.agreed,
            "anchor": self._anchor.clone(),
            "start": self._start.clone(),
            "momentum": self._momentum.clone(),
            "residual": self._residual.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.begun = int(state["begun"])
        self.agreed = int(state["agreed"])
        self._anchor.copy_(state["anchor"])
        self._start.copy_(state["start"])
        self._momentum.copy_(state["momentum"])
        self._residual.restore(state["residual"])


def cut(parameters: Sequence[torch.Tensor], parts: int) -> list[list[torch.Tensor]]:
    """The tensors in `parts` runs of about equal size, in their order; ValueError when there are too few."""
    if len(parameters) < parts:
        raise ValueError(f"{len(parameters)} parameters can't make {parts} fragments; write {len(parameters)} at most")
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
