"""SPARTA around a loop's steps.

    step k     x ← x − …             at each member, by its own gradient
    then       x[i] ← mean of x[i]   for the places i that are drawn from (SEED, k)

Members so stay near each other without ever being the same; at the end the whole model is averaged once.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from testbed.protocol import FragmentDrift
from testbed.schemes.random_share import RandomShare
from testbed.schemes.sparta import SpartaOptions
from testbed.schemes.training import RoundTraining
from testbed.sync import Nesterov, flat
from testbed.sync.strategies import DiLoCo
from testbed.sync.strategies.drift import Loss
from testbed.sync.strategies.strategy import Steps


class Sparta(RandomShare):
    """Averages a share of the parameters after each step. DiLoCo's memory comes with that."""

    def __init__(self, training: RoundTraining, options: SpartaOptions, optimizer: Steps | None = None) -> None:
        super().__init__(training, options, optimizer)
        self._diloco = None
        self._every = options.every or 0
        if options.every is not None:
            outer = Nesterov(options.outer.learning_rate, options.outer.momentum)
            self._diloco = DiLoCo(training.reducer, training.parameters, None, options.every, outer)

    def after_step(self) -> None:
        self._steps += 1
        values = self._gather()
        places = self._draw(values)
        share = values[places]
        self._reducer.allreduce(share, self.weight)
        values[places] = share
        flat.scatter(values, self._parameters)
        if self._diloco is not None:
            self._diloco.weight = self.weight
            self._diloco.after_step()

    def settle(self) -> None:
        """Average the whole model, as DiLoCo does it where there is one."""
        if self._diloco is not None:
            self._diloco.settle()
        else:
            super().settle()

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


def build(options: SpartaOptions, training: RoundTraining) -> Sparta:
    """The strategy for a member's model."""
    return Sparta(training, options)
