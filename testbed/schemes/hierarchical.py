"""Hierarchical local SGD: rounds inside the sites, and in each period one among all.

Each member runs local SGD; the plan says which rounds are among all.
"""

from __future__ import annotations

from dataclasses import dataclass

from testbed.schemes.local_sgd import build as build
from testbed.schemes.options import LocalSteps, limited
from testbed.schemes.scheme import Scheme


@dataclass(frozen=True)
class HierarchicalOptions(LocalSteps):
    """Options of hierarchical local SGD."""

    #: Each Nth round is among all members; a policy that makes groups (cpn, hips) has a period of its own.
    period: int = limited(4, ge=1)

    @property
    def site_period(self) -> int:
        """The option `period`, N: each Nth round is among all members, the others are inside sites."""
        return self.period


SCHEME = Scheme(
    name="hierarchical",
    options=HierarchicalOptions,
    exchange="all-reduce",
    planned=True,
    source="GeoMX's HFA, by our reading",
)
