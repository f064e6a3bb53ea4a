"""Options of schemes whose members stand in a communication graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from testbed.schemes.options import Misfit, Options, limited

#: The families of graphs that are made of any workers.
GraphKind = Literal["ring", "ring-based", "double-ring", "exponential", "torus", "complete"]

#: Of the network's fastest pairs each member keeps so many, unless told otherwise.
DEGREE = 3


@dataclass(frozen=True)
class InGraph(Options):
    """A family of graphs; or the network's fastest pairs, of which each member keeps `degree`, DEGREE by default."""

    graph: Literal[GraphKind, "network"] = "ring"
    degree: int | None = limited(None, ge=2)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.degree is not None and self.graph != "network":
            raise Misfit("degree", f"the graph {self.graph} has degrees of its own", "`graph: network`")
