"""SPARTA: after each step the members average a random share of the parameters, the same elements at all of them.

    step k     x ← x − …             at each member, by its own gradient
    then       x[i] ← mean of x[i]   for the indices i drawn from (SEED, k)

Members so stay near each other without ever being equal. At the end the whole model is averaged once.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from testbed.protocol import FragmentDrift
from testbed.schemes.options import NESTEROV, OuterOptions, limited
from testbed.schemes.random_share import RandomShare, ShareOptions
from testbed.schemes.scheme import Scheme
from testbed.schemes.training import RoundTraining
from testbed.sync import Nesterov, flat
from testbed.sync.strategies.strategy import Steps

if TYPE_CHECKING:
    from testbed.sync.strategies.drift import Loss


@dataclass(frozen=True)
class SpartaOptions(ShareOptions):
    """Options of SPARTA, alone or beside DiLoCo."""

    #: DiLoCo runs beside SPARTA, with a round of the whole model after this many steps; by default SPARTA runs alone.
    every: int | None = limited(None, ge=1)
    #: DiLoCo's outer optimizer.
    outer: OuterOptions = NESTEROV

    @property
    def round_share(self) -> float:
        """The fraction of the model that one round sends: `share`, or with DiLoCo the mean over a period's rounds."""
        return self.share if self.every is None else (self.every * self.share + 1) / (self.every + 1)


SCHEME = Scheme(
    name="sparta",
    options=SpartaOptions,
    exchange="all-reduce",
    planned=True,
    source="EXO Labs 2025, SPARTA in exo gym; second-hand, no paper",
)


class Sparta(RandomShare):
    """Averages a share of the parameters after each step. DiLoCo beside it needs DiLoCo's memory too."""

    def __init__(self, training: RoundTraining, options: SpartaOptions, optimizer: Steps | None = None) -> None:
        from testbed.sync.strategies import DiLoCo

        super().__init__(training, options, optimizer)
        self._diloco = None
        self._every = options.every or 0
        if options.every is not None:
            outer = Nesterov(options.outer.learning_rate, options.outer.momentum)
            self._diloco = DiLoCo(training.reducer, training.parameters, None, options.every, outer)

    def after_step(self) -> None:
        """Average a share of the parameters, drawn again for each step, and pass the step to DiLoCo if it runs."""
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
        """Average the whole model; by DiLoCo's last round where DiLoCo runs beside it."""
        if self._diloco is not None:
            self._diloco.settle()
        else:
            super().settle()

    def over(self, rounds: int, taken: int) -> bool:
        """Return whether `taken` steps make `rounds` rounds, with the one of the whole model at the end.

        DiLoCo has its own round after `every` steps, and needs none at the end where that was just one. A step with
        two rounds may make one round more than asked for.
        """
        more = 1 if not self._every else taken // self._every + (taken % self._every > 0)
        return taken > 0 and taken + more >= rounds

    def agreed(self) -> AbstractContextManager[None]:
        """Show the parameters of DiLoCo's last round.

        Without DiLoCo members agree only at the end; until then the member's own parameters stay.
        """
        return self._diloco.agreed() if self._diloco is not None else super().agreed()

    def watch(self, loss: Loss, every: int) -> None:
        """Measure drift in DiLoCo's rounds, if there are any."""
        if self._diloco is not None:
            self._diloco.watch(loss, every)

    def drift(self) -> tuple[FragmentDrift, ...]:
        """Return the drift in DiLoCo's rounds; empty without DiLoCo."""
        return self._diloco.drift() if self._diloco is not None else ()

    def state_dict(self) -> dict[str, Any]:
        """Return the count of steps, and DiLoCo's state."""
        return {"steps": self._steps, "diloco": self._diloco.state_dict() if self._diloco else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state_dict`."""
        self._steps = int(state["steps"])
        if self._diloco is not None:
            self._diloco.load_state_dict(state["diloco"])


def build(options: SpartaOptions, training: RoundTraining) -> Sparta:
    """Return the strategy for a member's model."""
    return Sparta(training, options)
