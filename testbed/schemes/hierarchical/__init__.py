"""Hierarchical local SGD: rounds inside the sites, and now and then one among all."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.schemes.options import limited
from testbed.schemes.scheme import Scheme
from testbed.schemes.steps import LocalSteps


@dataclass(frozen=True)
class HierarchicalOptions(LocalSteps):
    """`every` local steps to a round, of which each `period`-th is among all."""

    period: int = limited(4, ge=1)

    @property
    def site_period(self) -> int:
        return self.period


SCHEME = Scheme(
    name="hierarchical",
    options=HierarchicalOptions,
    exchange="all-reduce",
    planned=True,
    source="GeoMX's HFA",
)
