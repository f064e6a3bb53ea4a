"""The capacities that limit the overlay edges of a view, and which of them each edge draws on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.link import MTU_FRAME_BYTES, TCP_PAYLOAD_BYTES
from testbed.planning.view import Pair, View

#: The arrays that planning computes on.
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: The part of a link's rate that a flow gets as goodput: a link's rate counts frames, a plan's bytes are payload.
GOODPUT = TCP_PAYLOAD_BYTES / MTU_FRAME_BYTES


@dataclass(frozen=True, slots=True)
class Constraints:
    """The capacities of a network, and which of them each edge of a view draws on.

    A capacity is a physical link, or an edge itself (named `u=>v`) where its route is unknown or where its measured
    rate is below the rate of its route's links.
    """

    #: Each capacity by name: payload in bit/s.
    goodput_bps: Mapping[str, float]
    #: Each edge: the names of the capacities that its traffic uses.
    drawn: Mapping[Pair, tuple[str, ...]]

    @classmethod
    def of(cls, view: View) -> Constraints:
        """Return the constraints of a view. O(edges × route length)."""
        goodput = {name: link.rate_bps * GOODPUT for name, link in view.links.items() if link.up}
        drawn: dict[Pair, tuple[str, ...]] = {}
        for (source, target), edge in view.edges.items():
            route = view.routes.get((source, target), ())
            own = f"{source}=>{target}"
            if not route or edge.rate_bps < view.path_rate(source, target) * (1 - 1e-9):
                goodput[own] = edge.rate_bps * GOODPUT
                route = (*route, own)
            drawn[source, target] = route
        return cls(goodput, drawn)

    def with_members(self, egress_bps: float | None, ingress_bps: float | None) -> Constraints:
        """Return these constraints with a capacity for all that each member sends, and one for all that it receives.

        Args:
            egress_bps: The most that a member sends, bit/s in frames; None for no limit. The capacity is named `u=>`.
            ingress_bps: The most that a member receives, likewise. The capacity is named `=>u`.
        """
        goodput, drawn = dict(self.goodput_bps), dict(self.drawn)
        for source, target in self.drawn:
            for name, rate in ((f"{source}=>", egress_bps), (f"=>{target}", ingress_bps)):
                if rate is not None:
                    goodput[name] = rate * GOODPUT
                    drawn[source, target] = (*drawn[source, target], name)
        return Constraints(goodput, drawn)
