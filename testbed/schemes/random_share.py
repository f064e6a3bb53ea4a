"""The part that SPARTA and LOSCAR share: members average a random share of the parameters after each step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from testbed.schemes.options import Misfit, Options, limited
from testbed.schemes.training import RoundTraining
from testbed.sync import flat
from testbed.sync.strategies import Strategy
from testbed.sync.strategies.strategy import Steps

if TYPE_CHECKING:
    import torch

#: The seed of all members, so that they draw the same elements.
SEED = 1


@dataclass(frozen=True)
class ShareOptions(Options):
    """Options of a scheme that averages a share of the parameters, uncompressed."""

    #: The fraction of the parameters that is averaged after each step.
    share: float = limited(0.005, gt=0, le=1)

    @property
    def round_share(self) -> float:
        """The fraction of the model that one round sends: the option `share`."""
        return self.share

    def check_plan(self, policy: str, policy_options: Mapping[str, Any], codec: str) -> None:
        """Check as for any scheme, and refuse codecs: each round has other parameters."""
        super().check_plan(policy, policy_options, codec)
        if codec != "fp32":
            raise Misfit(
                "codec", f"{codec} leaves something for the next round, which has other places", "`codec: fp32`"
            )
        if policy_options.get("codecs"):
            raise Misfit("options.codecs", "a share of the parameters goes as it is", "leave it out")


class RandomShare(Strategy):
    """The base of strategies that average a share of the parameters. Twice the parameters in memory."""

    def __init__(self, training: RoundTraining, options: ShareOptions, optimizer: Steps | None = None) -> None:
        super().__init__(optimizer, training.weight)
        self._reducer = training.reducer
        self._parameters = training.parameters
        self._room = flat.room(training.parameters)
        self._count = max(1, round(options.share * self._room.numel()))
        self._steps = 0

    def settle(self) -> None:
        """Average the whole model. A plan with groups may need several rounds."""
        whole = False
        while not whole:
            values = self._gather()
            whole = self._reducer.allreduce(values, self.weight).whole
            flat.scatter(values, self._parameters)

    def _gather(self) -> torch.Tensor:
        """Return the parameters as one flat tensor."""
        return flat.gather(self._parameters, self._room)

    def _draw(self, values: torch.Tensor) -> torch.Tensor:
        """Return the indices of this step's share in the flat tensor."""
        return drawn(self._steps, self._count, values)


def drawn(step: int, count: int, values: torch.Tensor) -> torch.Tensor:
    """Draw the indices of `count` elements of a flat tensor, the same for every caller with this step.

    An index may be drawn twice, which does no harm. So the time to draw does not grow with the model.
    """
    import torch

    generator = torch.Generator().manual_seed(SEED * 2**32 + step)
    return torch.randint(values.numel(), (count,), generator=generator).to(values.device)
