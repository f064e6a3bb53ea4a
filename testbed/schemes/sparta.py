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
from testbed.schemes.options import NESTEROV, Misfit, Options, OuterOptions, limited
from testbed.schemes.scheme import Scheme
from testbed.schemes.training import RoundTraining
from testbed.sync import flat
from testbed.sync.strategies import Strategy

if TYPE_CHECKING:
    import torch

    from testbed.sync.strategies.fragment import Loss


#: The seed of all members, so that they draw the same elements.
SEED = 1

#: The largest share whose indices are drawn with replacement: fewer than one in 16 of them comes twice. Of a share of 1
#: 37 % of the elements would be left out.
WITH_REPLACEMENT = 1 / 8


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
                "codec", f"{codec} keeps errors for the next round, which sends other elements", "`codec: fp32`"
            )
        if policy_options.get("codecs"):
            raise Misfit("options.codecs", "a share of the parameters is sent uncompressed", "leave it out")


class RandomShare(Strategy):
    """The base of strategies that average a share of the parameters. Twice the parameters in memory."""

    def __init__(self, training: RoundTraining, options: ShareOptions) -> None:
        super().__init__(None, training.weight)
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
        return flat.gather(self._parameters, self._room)

    def state_dict(self) -> dict[str, Any]:
        """Return the count of steps."""
        return {"steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state_dict`."""
        self._steps = int(state["steps"])


def drawn(step: int, count: int, values: torch.Tensor) -> torch.Tensor:
    """Draw the indices of `count` elements of a flat tensor, the same for every caller with this step.

    An index of a small share may be drawn twice, which does no harm. So the time to draw does not grow with the model.
    """
    import torch

    generator = torch.Generator("cpu").manual_seed(SEED * 2**32 + step)
    if count > WITH_REPLACEMENT * values.numel():
        return torch.randperm(values.numel(), generator=generator, device="cpu")[:count].to(values.device)
    return torch.randint(values.numel(), (count,), generator=generator, device="cpu").to(values.device)


@dataclass(frozen=True)
class SpartaOptions(ShareOptions):
    """Options of SPARTA, alone or beside DiLoCo."""

    #: DiLoCo runs beside SPARTA, with a round of the whole model after this many steps; by default SPARTA runs alone.
    every: int | None = limited(None, ge=1)
    #: DiLoCo's outer optimizer.
    outer: OuterOptions = NESTEROV

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every is None and self.outer != NESTEROV:
            raise Misfit("outer", "SPARTA has an outer optimizer only with DiLoCo beside it", "`every: 100` with it")

    @property
    def round_share(self) -> float:
        """The fraction of the model that one round sends: `share`, or with DiLoCo the mean over a period's rounds."""
        return self.share if self.every is None else (self.every * self.share + 1) / (self.every + 1)

    @property
    def cycle(self) -> int:
        """The rounds of a period: with DiLoCo one of the whole model after the others."""
        return 1 if self.every is None else self.every + 1

    @property
    def uneven(self) -> bool:
        """True with DiLoCo, whose rounds have the whole model."""
        return self.every is not None


SCHEME = Scheme(
    name="sparta",
    options=SpartaOptions,
    exchange="all-reduce",
    planned=True,
    source="EXO Labs 2025, SPARTA in exo gym; second-hand, no paper",
)


class Sparta(RandomShare):
    """Averages a share of the parameters after each step. DiLoCo beside it needs DiLoCo's memory too."""

    def __init__(self, training: RoundTraining, options: SpartaOptions) -> None:
        from testbed.sync.strategies import DiLoCo

        super().__init__(training, options)
        self._diloco = None
        self._every = options.every or 0
        if options.every is not None:
            outer = options.outer.optimizer
            self._diloco = DiLoCo(training.reducer, training.parameters, None, options.every, outer)

    def after_step(self) -> None:
        """Average a share of the parameters, drawn again for each step, and pass the step to DiLoCo if it runs."""
        self._steps += 1
        values = self._gather()
        places = drawn(self._steps, self._count, values)
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

        DiLoCo has its own round after `every` steps, and needs none at the end if the last step had one. A step with
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
        return {**super().state_dict(), "diloco": self._diloco.state_dict() if self._diloco else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state_dict`."""
        super().load_state_dict(state)
        if self._diloco is not None:
            self._diloco.load_state_dict(state["diloco"])


def build(options: SpartaOptions, training: RoundTraining) -> Sparta:
    """Return the strategy for a member's model."""
    return Sparta(training, options)
