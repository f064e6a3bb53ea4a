"""Hybrid hierarchical synchronization of the CPN framework: as many steps to a round as each worker's speed allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.schemes.options import Misfit, limited
from testbed.schemes.outer import NESTEROV, OuterOptions
from testbed.schemes.scheme import Scheme
from testbed.schemes.steps import LocalSteps


@dataclass(frozen=True)
class HybridOptions(LocalSteps):
    """`every` local steps to a round at the fastest worker, each `period`-th round among all.

    What members change is evened out over their unequal steps (`normalise`, FedNova) and held back (`prox`, FedProx),
    or rounds go on beside the next one's steps (`overlap`, DaSGD).
    """

    period: int = limited(4, ge=1)
    outer: OuterOptions = NESTEROV
    prox: float = limited(0.0, ge=0, lt=1)
    normalise: bool = True
    overlap: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.overlap and self.prox:
            raise Misfit("prox", "rounds that overlap begin from no one place", "one of the two")

    @property
    def site_period(self) -> int:
        return self.period

    @property
    def overlaps(self) -> bool:
        return self.overlap

    @property
    def for_planning(self) -> Mapping[str, Any]:
        return {**super().for_planning, "overlap": self.overlap}


SCHEME = Scheme(
    name="hybrid",
    options=HybridOptions,
    exchange="all-reduce",
    planned=True,
    source="the CPN framework, JICN 2025, 10.64509/jicn.12.39",
)
