"""LOSCAR around a loop's steps (arXiv 2605.20866, by others' account of it).

    after step k         y = x[i]   goes off, for the places i that are drawn from (seed, k), as SPARTA's
    after step k + d     x[i] ← m + (z − y)     m: the members' mean of y, z: x[i] as it is by now

Without a delay z is y, and it is SPARTA. What is added, m − y, adds up to 0 over the members: the mean of all of them
moves by their own steps alone. A place that is drawn again within the delay is moved to a mean twice, which for a share
of 0.005 happens to one in 200 of what is sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from testbed.schemes.loscar import LoscarOptions
from testbed.schemes.random_share import RandomShare
from testbed.schemes.training import RoundTraining
from testbed.sync import flat
from testbed.sync.executor import Work
from testbed.sync.strategies.strategy import Steps


class Shared(NamedTuple):
    """A share of the parameters that is being averaged since a step: as it was sent, and what becomes the mean."""

    step: int
    places: torch.Tensor
    sent: torch.Tensor
    mean: torch.Tensor
    work: Work[Any]


class Loscar(RandomShare):
    """Averages a share of the parameters beside the steps that follow."""

    def __init__(self, training: RoundTraining, options: LoscarOptions, optimizer: Steps | None = None) -> None:
        super().__init__(training, options, optimizer)
        self._delay = options.delay
        self._under_way: deque[Shared] = deque()

    def after_step(self) -> None:
        """Take in the share whose time is over, and send off another."""
        self._steps += 1
        self._finish(self._steps - self._delay)
        values = self._gather()
        places = self._draw(values)
        sent = values[places]
        mean = sent.clone()
        work = self._reducer.allreduce_later(mean, self.weight)
        self._under_way.append(Shared(self._steps, places, sent, mean, work))
        if not self._delay:
            self._finish(self._steps)

    def settle(self) -> None:
        """Take in what is under way, and average the whole model."""
        self._finish(self._steps)
        super().settle()

    def over(self, rounds: int, taken: int) -> bool:
        """The last round is that of the whole model."""
        return taken > 0 and taken + 1 >= rounds

    def state_dict(self) -> dict[str, Any]:
        """The count of steps; what is under way is taken in first."""
        self._finish(self._steps)
        return {"steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self._steps = int(state["steps"])

    def _finish(self, step: int) -> None:
        """Take in what was sent off until this step."""
        while self._under_way and self._under_way[0].step <= step:
            share = self._under_way.popleft()
            share.work.wait()
            values = self._gather()
            values[share.places] = share.mean + (values[share.places] - share.sent)
            flat.scatter(values, self._parameters)


def build(options: LoscarOptions, training: RoundTraining) -> Loscar:
    """The strategy for a member's model."""
    return Loscar(training, options)
