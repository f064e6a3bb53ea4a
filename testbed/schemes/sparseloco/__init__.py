"""SparseLoCo: local steps, and of what they changed the largest values of each chunk alone, in two bits each; what is
left out is kept for the next time, and stands in for the outer optimizer's momentum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.schemes.options import Misfit, limited
from testbed.schemes.scheme import Scheme
from testbed.schemes.steps import LocalSteps


@dataclass(frozen=True)
class SparseLoCoOptions(LocalSteps):
    """`every` local steps to a round, in which each chunk of `chunk` × `chunk` elements sends its `top_k` largest, in
    so many `bits` (None: as they are). Of what was left out the part `decay` goes on."""

    every: int = limited(15, ge=1)
    top_k: int = limited(32, ge=1)
    chunk: int = limited(64, ge=1)
    bits: int | None = limited(2, ge=1, le=8)
    decay: float = limited(0.999, ge=0, le=1)
    learning_rate: float = limited(1.0, gt=0)

    @property
    def among_all(self) -> bool:
        return True

    def check_plan(self, policy: str, policy_options: Mapping[str, Any], codec: str) -> None:
        super().check_plan(policy, policy_options, codec)
        if codec not in ("sparse", "fp32"):
            raise Misfit("codec", f"{codec} leaves something out a second time", "`codec: sparse`")


SCHEME = Scheme(
    name="sparseloco",
    options=SparseLoCoOptions,
    exchange="all-reduce",
    planned=True,
    elastic=True,
    codec="sparse",
    source="Sarfi et al. 2025, arXiv 2508.15706; second-hand, and CCLoco's code",
)
