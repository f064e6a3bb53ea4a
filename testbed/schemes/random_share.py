"""What SPARTA and LOSCAR have in common: a random share of the parameters is averaged after each step."""

from __future__ import annotations

import torch

from testbed.schemes.shares import ShareOptions
from testbed.schemes.training import RoundTraining
from testbed.sync import flat
from testbed.sync.strategies import Strategy
from testbed.sync.strategies.strategy import Steps

#: All members draw the same elements.
SEED = 1


class RandomShare(Strategy):
    """Draws the share, and averages the whole model at the end. Twice the parameters in memory."""

    def __init__(self, training: RoundTraining, options: ShareOptions, optimizer: Steps | None = None) -> None:
        super().__init__(optimizer, training.weight)
        self._reducer = training.reducer
        self._parameters = training.parameters
        self._room = flat.room(training.parameters)
        self._count = max(1, round(options.share * self._room.numel()))
        self._steps = 0

    def settle(self) -> None:
        """Average the whole model. Groups may need several rounds."""
        whole = False
        while not whole:
            values = self._gather()
            whole = self._reducer.allreduce(values, self.weight).whole
            flat.scatter(values, self._parameters)

    def _gather(self) -> torch.Tensor:
        """The parameters as one flat tensor."""
        return flat.gather(self._parameters, self._room)

    def _draw(self, values: torch.Tensor) -> torch.Tensor:
        """The places of this step's share in the flat tensor."""
        return drawn(self._steps, self._count, values)


def drawn(step: int, count: int, values: torch.Tensor) -> torch.Tensor:
    """So many elements of a flat tensor, the same for all that ask for the step. Some may come twice, which does no
    harm, and drawing them takes no time that grows with the model."""
    generator = torch.Generator().manual_seed(SEED * 2**32 + step)
    return torch.randint(values.numel(), (count,), generator=generator).to(values.device)
