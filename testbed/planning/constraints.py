"""What limits the overlay edges of a view: capacities, and which of them each edge draws on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from testbed.link import MTU_FRAME_BYTES, TCP_PAYLOAD_BYTES
from testbed.planning.view import Pair, View

#: A link's rate counts frames, a plan's bytes are payload: a flow's goodput is this part of the rate.
GOODPUT = TCP_PAYLOAD_BYTES / MTU_FRAME_BYTES


@dataclass(frozen=True, slots=True)
class Constraints:
    """`goodput_bps` of each capacity by name, and the names that each edge of the view draws on.

    A capacity is a physical link, or an edge itself (`u=>v`) where its route is unknown or where its measured rate
    is below what its route's links would carry.
    """

    goodput_bps: Mapping[str, float]
    drawn: Mapping[Pair, tuple[str, ...]]

    @classmethod
    def of(cls, view: View) -> Constraints:
        """The constraints of a view. O(edges × route length)."""
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
        """With a capacity for all that each member sends, and one for all that it receives, where a rate is given.

        They are named `u=>` and `=>u`; the rates count frames.
        """
        goodput, drawn = dict(self.goodput_bps), dict(self.drawn)
        for source, target in self.drawn:
            for name, rate in ((f"{source}=>", egress_bps), (f"=>{target}", ingress_bps)):
                if rate is not None:
                    goodput[name] = rate * GOODPUT
                    drawn[source, target] = (*drawn[source, target], name)
        return Constraints(goodput, drawn)
