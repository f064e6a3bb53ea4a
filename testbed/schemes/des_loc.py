"""DES-LOC: local steps of Adam, and parameters and moments that are averaged each at a period of its own.

    step t     x, u, v ← a step of Adam at each member         u, v: the first and the second moment
    then       x ← mean of x      where t is a multiple of K_x    (`every`)
               u ← mean of u      where t is a multiple of K_u    (`first` · K_x)
               v ← mean of v      where t is a multiple of K_v    (`second` · K_x)

Source: Iacob et al. 2025, arXiv 2505.22549, by its abstract and others' account of the formula. The authors recommend
K_u = 3 K_x and K_v = 6 K_x: a moment that changes more slowly is averaged less often. So members send half of local
Adam's bytes (`first: 1`, `second: 1`), and with K_x = 256 a 170th of those of all-reduce at each step.

All means due after a step take one round, uncompressed. With SGD DES-LOC is local SGD.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from typing import TYPE_CHECKING, Any

from testbed.schemes.options import LocalSteps, Misfit, limited
from testbed.schemes.scheme import Scheme
from testbed.schemes.training import RoundTraining
from testbed.sync import flat
from testbed.sync.strategies import Strategy

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class DesLocOptions(LocalSteps):
    """Options of DES-LOC."""

    #: Rounds from one mean of the first moments to the next (K_u / K_x).
    first: int = limited(3, ge=1)
    #: Rounds from one mean of the second moments to the next (K_v / K_x).
    second: int = limited(6, ge=1)

    @property
    def round_share(self) -> float:
        """The mean number of values in a round with Adam, as a multiple of the model's: 1.5 with the defaults."""
        return 1 + 1 / self.first + 1 / self.second

    @property
    def cycle(self) -> int:
        """The number of rounds after which both moments are averaged again."""
        return lcm(self.first, self.second)

    @property
    def uneven(self) -> bool:
        """True unless each round averages both moments."""
        return max(self.first, self.second) > 1

    def check_plan(self, policy: str, policy_options: Mapping[str, Any], codec: str) -> None:
        """Check as for any scheme, and refuse codecs: they are not for moments."""
        super().check_plan(policy, policy_options, codec)
        if codec != "fp32":
            raise Misfit("codec", f"{codec} is not for an optimizer's moments", "`codec: fp32`")
        if policy_options.get("codecs"):
            raise Misfit("options.codecs", "an optimizer's moments are sent uncompressed", "leave it out")


SCHEME = Scheme(
    name="des_loc",
    options=DesLocOptions,
    exchange="all-reduce",
    planned=True,
    elastic=True,
    inner=("adam", "adamw", "sgd"),  # Muon's momenta are no pairs
    source="Iacob et al. 2025, arXiv 2505.22549; the formula second-hand",
)


class DesLoc(Strategy):
    """Averages parameters every few steps, and the optimizer's moments in some of these rounds.

    It needs the parameters once more in memory, and three times in a round with all moments. Under a plan with groups,
    rounds inside a group average what is due there.
    """

    def __init__(self, training: RoundTraining, options: DesLocOptions) -> None:
        super().__init__(None, training.weight)
        self._training = training
        self._options = options
        self._steps = 0
        self._rounds = 0
        self._whole = True

    def after_step(self) -> None:
        """Count a step, and average what is due after `every` steps."""
        self._steps += 1
        if self._steps >= self._options.every:  # a restored state may be of a longer period
            self._average()

    def settle(self) -> None:
        """Average what has changed since the last round. A plan with groups may need several rounds."""
        while not self.together:
            self._average()

    @property
    def together(self) -> bool:
        """True if no step was taken since the last round, which was among all."""
        return not self._steps and self._whole

    def over(self, rounds: int, taken: int) -> bool:
        """Return whether the rounds of the run are done."""
        return self._rounds >= rounds

    def state_dict(self) -> dict[str, Any]:
        """Return the counts of steps in the period and of rounds."""
        return {"steps": self._steps, "rounds": self._rounds, "whole": self._whole}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state_dict`."""
        self._steps, self._rounds, self._whole = int(state["steps"]), int(state["rounds"]), bool(state["whole"])

    def _average(self) -> None:
        self._rounds += 1
        tensors = [*self._training.parameters, *self._due()]
        room = flat.gather(tensors)
        self._whole = self._training.reducer.allreduce(room, self.weight).whole
        flat.scatter(room, tensors)
        self._steps = 0

    def _due(self) -> Sequence[torch.Tensor]:
        """Return the moments that this round averages."""
        moments = self._training.moments()
        first, second = moments[0::2], moments[1::2]
        if [its.shape for its in first] != [its.shape for its in second]:
            raise Misfit("optimizer", "it does not keep a first and a second moment of each tensor", "Adam or AdamW")
        due = [] if self._rounds % self._options.first else [*first]
        return due if self._rounds % self._options.second else [*due, *second]


def build(options: DesLocOptions, training: RoundTraining) -> DesLoc:
    """Return the strategy for a member's model."""
    return DesLoc(training, options)
