"""D-PSGD: each member averages with its neighbours in every iteration. Members run Hop in its standard mode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from testbed.schemes.assignment import GossipAssignment, Setting, graph_of
from testbed.schemes.hop import build as build
from testbed.schemes.options import InGraph
from testbed.schemes.scheme import Scheme


@dataclass(frozen=True)
class DpsgdOptions(InGraph):
    """Options of D-PSGD."""

    #: The rule by which members weigh the parameters that they average; by default `metropolis`.
    weights: Literal["uniform", "metropolis"] | None = None
    #: Take the local step before the average (serial), or beside it (parallel).
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


def assign(options: DpsgdOptions, setting: Setting) -> GossipAssignment:
    """Give members their neighbours and Hop's standard rules. Raises GraphError if there is no such graph."""
    return GossipAssignment(
        protocol="hop",
        graph=graph_of(options, setting),
        weighing=options.weights or "metropolis",
        rules={"parallel": options.form == "parallel"},
    )
