"""D-PSGD: each member averages with its neighbours in every iteration; Hop's standard mode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from testbed.schemes.options import InGraph
from testbed.schemes.scheme import Scheme


@dataclass(frozen=True)
class DpsgdOptions(InGraph):
    """Its weights are Metropolis', unless others are asked for."""

    weights: Literal["uniform", "metropolis"] | None = None
    form: Literal["serial", "parallel"] = "serial"


SCHEME = Scheme(
    name="dpsgd",
    options=DpsgdOptions,
    exchange="gossip",
    planned=False,
    elastic=True,
    survives=True,
    alike=False,
    source="Lian et al. 2017, arXiv 1705.09056",
)
