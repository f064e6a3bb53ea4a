"""TSEngine: pairs of sender and receiver are decided as members become ready, by the throughput of past transfers."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass

from testbed.plan import Plan, Tree
from testbed.planning.policy import Policy, PolicyError, check_member, check_whole, register
from testbed.planning.view import Pair, View

#: The highest probability of a known edge against a random one; random choices make all edges known in time.
GREED = 0.9


@register("tsengine")
@dataclass(frozen=True)
class Tsengine(Policy):
    """TSEngine (Zhou, Cai, Yu et al., IEEE TNSM 2021): an online scheduler, simulated on the view.

    A coordinator holds a throughput matrix A: the rates of the view's measured edges, or of all edges if the view is
    the emulator's own. Other edges are unknown to it.

    - Pull: a member that has the model asks which member to serve. The answer is the unserved member that maximises A
      with probability min(known / (known + unknown), 0.9), else a random one.
    - Push: ready members queue. The first two merge along the faster direction of A; a pairing with the server ends at
      the server.
    - A member asks again when its transfer is over.

    The scheduler decides whenever a member becomes ready. A transfer takes model / rate of its edge, as the view has
    it; so the view, the arrivals and the seed determine the plan: a reduce tree and a broadcast tree of the server.
    Views of different rates give different draws; those of equal rates at different times give the same, so that a
    simulation can be repeated. O(n² log n).
    """

    #: The member that holds the model; by default the first.
    server: str | None = None
    #: The order in which members become ready; by default the members' own order.
    arrivals: tuple[str, ...] | None = None
    #: The seed of the random choices.
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole(self, "seed", self.seed, least=0)
        if self.arrivals is not None and (isinstance(self.arrivals, str) or not isinstance(self.arrivals, Sequence)):
            text = f"tsengine: arrivals {self.arrivals!r} must list the members in the order in which they become ready"
            raise PolicyError(text, field="arrivals", given=self.arrivals)

    def plan(self, view: View) -> Plan:
        """Return the trees that the online scheduler's choices lead to, drawn by the seed and the view's rates."""
        server = view.names[0] if self.server is None else self.server
        check_member(self, "server", server, view)
        arrivals = view.names if self.arrivals is None else tuple(self.arrivals)
        if sorted(map(str, arrivals)) != sorted(view.names):
            raise PolicyError(
                f"tsengine: arrivals must name each member once: {', '.join(view.names)}", field="arrivals"
            )
        rates = [(pair, edge.rate_bps) for pair, edge in sorted(view.edges.items())]
        coordinator = _Coordinator(view, random.Random(f"{self.seed} {rates}"))
        return self._plan(view, [Tree(server, coordinator.push(server, arrivals), coordinator.pull(server))])


class _Coordinator:
    def __init__(self, view: View, draw: random.Random) -> None:
        self._view = view
        self._draw = draw
        everything = view.knowledge == "oracle"
        self._known = {p: edge.rate_bps for p, edge in view.edges.items() if everything or edge.source == "measured"}

    def pull(self, server: str) -> dict[str, str]:
        """Return each member's parent in the broadcast tree."""
        parents: dict[str, str] = {}
        unserved = [name for name in self._view.names if name != server]
        asking = [(0.0, 0, server)]
        asked = 1
        while unserved and asking:
            now, _, holder = heapq.heappop(asking)
            reachable = [name for name in unserved if (holder, name) in self._view.edges]
            if not reachable:
                continue
            served = self._receiver(holder, reachable)
            unserved.remove(served)
            parents[served] = holder
            for name in (holder, served):
                heapq.heappush(asking, (now + self._seconds((holder, served)), asked, name))
                asked += 1
        if unserved:
            raise PolicyError(f"tsengine: the view has no path from {server} to {', '.join(unserved)}")
        return parents

    def _receiver(self, holder: str, reachable: Sequence[str]) -> str:
        known = [name for name in reachable if (holder, name) in self._known]
        if known and self._draw.random() < min(len(known) / len(reachable), GREED):
            return max(known, key=lambda name: self._known[holder, name])
        return self._draw.choice(reachable)

    def push(self, server: str, arrivals: Sequence[str]) -> dict[str, str]:
        """Return each member's parent in the reduce tree."""
        parents: dict[str, str] = {}
        events = [(0.0, i, name) for i, name in enumerate(arrivals)]
        queue: list[str] = []
        asked = len(events)
        while events:
            now, _, name = heapq.heappop(events)
            partner = next((other for other in queue if self._edge(name, other, server)), None)
            if partner is None:
                queue.append(name)
                continue
            queue.remove(partner)
            sender, receiver = self._edge(partner, name, server) or (partner, name)
            parents[sender] = receiver
            heapq.heappush(events, (now + self._seconds((sender, receiver)), asked, receiver))
            asked += 1
        if len(parents) < len(arrivals) - 1:
            raise PolicyError(f"tsengine: the view has no edges along which {', '.join(queue)} merge into {server}")
        return parents

    def _edge(self, one: str, other: str, server: str) -> Pair | None:
        """Return the edge along which two members merge: into the server, else the faster known edge."""
        both = [pair for pair in ((one, other), (other, one)) if pair in self._view.edges and pair[0] != server]
        return max(both, key=lambda pair: self._known.get(pair, 0.0), default=None)

    def _seconds(self, pair: Pair) -> float:
        return 8 * self._view.model_bytes / self._view.edges[pair].rate_bps
