"""DiLoCo: local steps, and an outer optimizer that steps by the members' mean change; streamed, if asked."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

from testbed.plan import SchemeTraits
from testbed.schemes.options import NESTEROV, LocalSteps, Misfit, OuterOptions, limited
from testbed.schemes.scheme import STEPS, Scheme
from testbed.schemes.training import RoundTraining
from testbed.sync.strategies import Strategy


@dataclass(frozen=True)
class DilocoOptions(LocalSteps):
    """Options of DiLoCo and of streaming DiLoCo."""

    #: The parts of the model, each of which has a round of its own in a period.
    fragments: int = limited(1, ge=1)
    #: Steps that members take while a fragment is reduced.
    delay: int = limited(0, ge=0)
    #: The outer optimizer, which applies the members' mean change to the model.
    outer: OuterOptions = NESTEROV

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every % self.fragments:
            raise Misfit("fragments", f"{self.fragments} do not divide {self.every} steps evenly", "a divisor of every")
        if self.delay >= self.every:
            raise Misfit("delay", f"{self.delay} steps are not over before the next round", f"below {self.every}")

    @property
    def parts(self) -> int:
        """The number of fragments, each with a round of its own in a period."""
        return self.fragments

    @property
    def overlaps(self) -> bool:
        """True if members take steps while a fragment is reduced (`delay`)."""
        return self.delay > 0

    @property
    def covered(self) -> float:
        """The part of the steps between two fragments' rounds after which a member waits for the first of them."""
        return min(self.delay * self.fragments / self.every, 1.0)

    def check_elastic(self) -> None:
        """Raise Misfit with a `delay`: no moment is left at which a member could come back."""
        if self.delay:
            raise Misfit("delay", "rounds that overlap steps leave members no moment to come back", "no `delay`")


SCHEME = Scheme(
    name="diloco",
    options=DilocoOptions,
    exchange="all-reduce",
    planned=True,
    elastic=True,
    traits=SchemeTraits(steps=STEPS, worth=(0.0, 0.3), normalized=(log(0.6), 0.5)),
    source="Douillard et al. 2023, arXiv 2311.08105; streamed: Douillard et al. 2025, arXiv 2501.18512",
)


def build(options: DilocoOptions, training: RoundTraining) -> Strategy:
    """Return the strategy for a member's model."""
    from testbed.sync.strategies import DiLoCo

    return DiLoCo(
        training.reducer,
        training.parameters,
        every=options.every,
        outer=options.outer.optimizer,
        fragments=options.fragments,
        delay=options.delay,
        weight=training.weight,
    )
