"""Synchronous SGD: every step by the mean of all members' gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.schemes.options import Misfit, Options, limited
from testbed.schemes.scheme import Scheme


@dataclass(frozen=True)
class GradientsOptions(Options):
    """With a `powersgd_rank` matrices travel as factors of that rank (PowerSGD)."""

    powersgd_rank: int | None = limited(None, ge=1)

    @property
    def exact(self) -> bool:
        return self.powersgd_rank is None

    @property
    def among_all(self) -> bool:
        return True

    def check_plan(self, policy: str, policy_options: Mapping[str, Any], codec: str) -> None:
        super().check_plan(policy, policy_options, codec)
        if codec != "fp32" and self.powersgd_rank is not None:
            raise Misfit("codec", "PowerSGD's factors travel as they are", "one of the two")

    def check_elastic(self) -> None:
        if self.powersgd_rank is not None:
            raise Misfit(
                "powersgd_rank", "a step with two rounds leaves no moment to come back at", "no `powersgd_rank`"
            )


SCHEME = Scheme(
    name="gradients",
    options=GradientsOptions,
    exchange="all-reduce",
    planned=True,
    elastic=True,
    source="synchronous SGD; PowerSGD: Vogels et al. 2019, arXiv 1905.13727",
)
