"""SPARTA around a loop's steps.

    step k     x ← x − …             at each member, by its own gradient
    then       x[i] ← mean of x[i]   for the places i that are drawn from (SEED, k)

Members so stay near each other without ever being the same; at the end the whole model is averaged once.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from testbed.protocol import FragmentDrift
from testbed.schemes.sparta import SpartaOptions
from testbed.schemes.training import RoundTraining
from testbed.sync import Nesterov, flat
from testbed.sync.strategies import DiLoCo, Strategy
from testbed.sync.strategies.drift import Loss
from testbed.sync.strategies.strategy import Steps

#: All members draw the same elements.
SEED = 1


class Sparta(Strategy):
    """Averages a share of the parameters after each step. Twice the parameters in memory, and DiLoCo's with that."""

    def __init__(self, training: RoundTraining, options: SpartaOptions, optimizer: Steps | None = None) -> None:
        super().__init__(optimizer, training.weight)
        self._reducer = training.reducer
        self._parameters = training.parameters
        self._room = flat.room(training.parameters)
        self._count = max(1, round(options.share * self._room.numel()))
        self._steps = 0
        self._diloco = None
        self._every = options.every or 0
        if options.every is not None:
            outer = Nesterov(options.outer.learning_rate, options.outer.momentum)
            self._diloco = DiLoCo(training.reducer, training.parameters, None, options.every, outer)

    def after_step(self) -> None:
        self._steps += 1
        values = flat.gather(self._parameters, self._room)
        places = drawn(self._steps, self._count, values)
        share = values[places]
        self._reducer.allreduce(share, self.weight)
        values[places] = share
        flat.scatter(values, self._parameters)
        if self._diloco is not None:
            self._diloco.weight = self.weight
            self._diloco.after_step()

    def settle(self) -> None:
        """Average the whole model. Groups may need several rounds."""
        if self._diloco is not None:
            self._diloco.settle()
            return
        whole = False
        while not whole:
            values = flat.gather(self._parameters, self._room)
            whole = self._reducer.allreduce(values, self.weight).whole
            flat.scatter(values, self._parameters)

    def over(self, rounds: int, taken: int) -> bool:
        """DiLoCo has a round each so many steps; one is kept for the end, unless that was just one of DiLoCo's. Where a
        step has two rounds there may be one more than asked for."""
        more = 1 if not self._every else taken // self._every + (taken % self._every > 0)
        return taken > 0 and taken + more >= rounds

    def agreed(self) -> AbstractContextManager[None]:
        """What DiLoCo's last round agreed on. Without DiLoCo members agree at the end alone: until then this is where
        the member itself is."""
        return self._diloco.agreed() if self._diloco is not None else super().agreed()

    def watch(self, loss: Loss, every: int) -> None:
        """In DiLoCo's rounds, where it has any."""
        if self._diloco is not None:
            self._diloco.watch(loss, every)

    def drift(self) -> tuple[FragmentDrift, ...]:
        return self._diloco.drift() if self._diloco is not None else ()

    def state_dict(self) -> dict[str, Any]:
        """The count of steps, and DiLoCo's state."""
        return {"steps": self._steps, "diloco": self._diloco.state_dict() if self._diloco else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self._steps = int(state["steps"])
        if self._diloco is not None:
            self._diloco.load_state_dict(state["diloco"])


def drawn(step: int, count: int, values: torch.Tensor) -> torch.Tensor:
    """So many elements of a flat tensor, the same for all that ask for the step. Some may come twice, which does no
    harm, and drawing them takes no time that grows with the model."""
    generator = torch.Generator().manual_seed(SEED * 2**32 + step)
    return torch.randint(values.numel(), (count,), generator=generator).to(values.device)


def build(options: SpartaOptions, training: RoundTraining) -> Sparta:
    """The strategy for a member's model."""
    return Sparta(training, options)
