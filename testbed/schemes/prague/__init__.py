"""Prague: members average in groups that are drawn anew all the while, and that have no member in common."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.schemes.options import Options, limited
from testbed.schemes.scheme import Scheme


@dataclass(frozen=True)
class PragueOptions(Options):
    """So many members to a `group`."""

    group: int = limited(3, ge=2)


SCHEME = Scheme(
    name="prague",
    options=PragueOptions,
    exchange="gossip",
    planned=False,
    synchronous=False,
    alike=False,
    source="Luo et al. 2020, ASPLOS, arXiv 1909.08029",
)
