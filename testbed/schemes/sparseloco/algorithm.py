"""SparseLoCo around a loop's steps (arXiv 2508.15706, by others' account of it; CCLoco's code).

    Δ = θ − (θ after H local steps)
    e ← β·e + Δ             each member's own
    q = Q(top-k of each chunk of e)
    e ← e − q
    θ ← θ − α·mean(q)

Momentum in the outer optimizer would keep what was sent, once more, beside what was not: e already does that. In
CCLoco's code a place's mean is over those members that sent it; here, as the formula says, over all.

The sums of q travel whole through the codec `sparse`, so that the mean is exact whatever the trees are: a member alone
sends two bits a value, relays the union of places with as many levels as their sums have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from testbed.schemes.sparseloco import SparseLoCoOptions
from testbed.schemes.sparseloco.compression import compressed
from testbed.schemes.training import RoundTraining
from testbed.sync import Residual, flat
from testbed.sync.strategies import Strategy
from testbed.sync.strategies.strategy import Steps, check_whole


class SparseLoCo(Strategy):
    """Members begin with the same parameters and agree after each round. Four times the parameters in memory, or five
    where the plan has a codec."""

    def __init__(self, training: RoundTraining, options: SparseLoCoOptions, optimizer: Steps | None = None) -> None:
        super().__init__(optimizer, training.weight)
        self._reducer = training.reducer
        self._parameters = training.parameters
        self._options = options
        self._anchor = flat.gather(self._parameters, flat.room(self._parameters))
        self._error = flat.room(self._parameters)
        self._sent = flat.room(self._parameters)
        self._residual = Residual()
        self._steps = 0
        self._rounds = 0

    def after_step(self) -> None:
        self._steps += 1
        if self._steps == self._options.every:
            self._step_out()

    def settle(self) -> None:
        """A round of what has changed since the last one."""
        if self._steps:
            self._step_out()

    @property
    def together(self) -> bool:
        return not self._steps

    def over(self, rounds: int, taken: int) -> bool:
        return self._rounds >= rounds

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """The parameters are those of the last round while inside."""
        here = flat.gather(self._parameters, flat.room(self._parameters))
        flat.scatter(self._anchor, self._parameters)
        yield
        flat.scatter(here, self._parameters)

    def state_dict(self) -> dict[str, Any]:
        """Where members agreed, what this one has left out, and how far the period is."""
        counts = {"steps": self._steps, "rounds": self._rounds}
        tensors = {"anchor": self._anchor.clone(), "error": self._error.clone(), "residual": self._residual.state()}
        return {**counts, **tensors}

    def handover(self) -> dict[str, Any]:
        """Nothing was left out yet by who begins."""
        return {**self.state_dict(), "error": torch.zeros_like(self._error), "residual": None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self._steps, self._rounds = int(state["steps"]), int(state["rounds"])
        self._anchor.copy_(state["anchor"])
        self._error.copy_(state["error"])
        self._residual.restore(state["residual"])

    def _step_out(self) -> None:
        options = self._options
        changed = torch.sub(self._anchor, flat.gather(self._parameters, self._sent), out=self._sent)
        self._error.mul_(options.decay).add_(changed)
        start = 0
        for parameter in self._parameters:
            part = slice(start, start + parameter.numel())
            values = self._error[part].view(parameter.shape)
            self._sent[part] = compressed(values, options.top_k, options.chunk, options.bits).flatten()
            start = part.stop
        self._error.sub_(self._sent)
        check_whole(self._reducer.allreduce(self._sent, self.weight, self._residual))
        self._anchor.sub_(self._sent, alpha=options.learning_rate)
        flat.scatter(self._anchor, self._parameters)
        self._steps = 0
        self._rounds += 1


def build(options: SparseLoCoOptions, training: RoundTraining) -> SparseLoCo:
    """The strategy for a member's model."""
    return SparseLoCo(training, options)
