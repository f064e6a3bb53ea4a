"""MuLoCo: DiLoCo whose members step by Muon, and whose changes so lose little in two bits a value."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.schemes.options import limited
from testbed.schemes.outer import OuterOptions
from testbed.schemes.scheme import Scheme
from testbed.schemes.steps import LocalSteps

#: What the authors take outside.
OUTER = OuterOptions(learning_rate=0.8, momentum=0.9)


@dataclass(frozen=True)
class MulocoOptions(LocalSteps):
    """`every` local steps to a round. Of what the codec left out in one round, `decay` goes with the next."""

    every: int = limited(30, ge=1)
    outer: OuterOptions = OUTER
    decay: float = limited(0.9, ge=0, le=1)


SCHEME = Scheme(
    name="muloco",
    options=MulocoOptions,
    exchange="all-reduce",
    planned=True,
    elastic=True,
    codec="bins2",
    inner="muon",
    source="Thérien et al. 2025, arXiv 2505.23725",
)
