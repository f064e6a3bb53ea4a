"""Synchronous SGD: each step uses the mean of all members' gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.plan import SchemeTraits
from testbed.schemes.options import Misfit, Options, limited
from testbed.schemes.scheme import Scheme
from testbed.schemes.training import RoundTraining
from testbed.sync.strategies import Strategy


@dataclass(frozen=True)
class GradientsOptions(Options):
    """Options of synchronous SGD."""

    among_all = True  # a gradient that some members miss would make the members' parameters differ for good

    #: Matrices travel as factors of this rank (PowerSGD); by default they travel whole.
    powersgd_rank: int | None = limited(None, ge=1)

    @property
    def exact(self) -> bool:
        """True unless PowerSGD is on: then steps use a low-rank part of the mean gradient."""
        return self.powersgd_rank is None

    @property
    def cycle(self) -> int:
        """The rounds of a step: two with PowerSGD."""
        return 2 if self.uneven else 1

    @property
    def uneven(self) -> bool:
        """True with PowerSGD: a step has a round of P and of small tensors, and one of Q."""
        return self.powersgd_rank is not None

    def check_plan(self, policy: str, policy_options: Mapping[str, Any], codec: str) -> None:
        """Check as for any scheme, and refuse a codec beside PowerSGD."""
        super().check_plan(policy, policy_options, codec)
        if codec != "fp32" and self.powersgd_rank is not None:
            raise Misfit("codec", "PowerSGD's factors are sent uncompressed", "one of the two")

    def check_elastic(self) -> None:
        """Raise Misfit with PowerSGD, whose step has two rounds."""
        if self.powersgd_rank is not None:
            raise Misfit(
                "powersgd_rank", "a step with two rounds leaves members no moment to come back", "no `powersgd_rank`"
            )


SCHEME = Scheme(
    name="gradients",
    options=GradientsOptions,
    exchange="all-reduce",
    planned=True,
    elastic=True,
    traits=SchemeTraits(steps=(1,)),
    source="synchronous SGD; PowerSGD: Vogels et al. 2019, arXiv 1905.13727",
)


def build(options: GradientsOptions, training: RoundTraining) -> Strategy:
    """Return the strategy for a member's model."""
    from testbed.sync.strategies import Gradients, PowerSgd

    powersgd = PowerSgd(options.powersgd_rank) if options.powersgd_rank else None
    return Gradients(training.reducer, training.parameters, weight=training.weight, powersgd=powersgd)
