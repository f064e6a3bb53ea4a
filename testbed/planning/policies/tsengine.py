"""TSEngine: which member sends to which is decided when members are ready, by what transfers showed so far."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass

from testbed.plan import Plan, Tree
from testbed.planning.policy import Policy, PolicyError, check_member, check_whole, register
from testbed.planning.view import Pair, View

#: With this probability at most a known edge is taken rather than a random one, so that all get known in time.
GREED = 0.9


@register("tsengine")
@dataclass(frozen=True)
class Tsengine(Policy):
    """TSEngine (Zhou, Cai, Yu et al., IEEE TNSM 2021): an online scheduler, played through on what is known.

    A coordinator holds a throughput matrix A: the rates of the view's measured edges, all of them where the view is
    the emulator's own; the others are unknown to it.
    Pull: a member that has the model asks which one to serve, and gets the unserved one that maximises A with
    probability min(known / (known + unknown), 0.9), else a random one. Push: ready members queue; the first two merge
    along the faster direction of A; a pairing with the server ends at it. Each asks again when its transfer is over.

    It decides by arrival: members are ready in the order of `arrivals` (the members' own by default), and a transfer
    takes model / rate of its edge, as the view has it. So given the view, the arrivals and the `seed`, the plan is a
    function: a reduce tree and a broadcast tree of `server` (the first member by default). Draws differ from moment to
    moment of the view. O(n² log n).
    """

    server: str | None = None
    arrivals: tuple[str, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole(self, "seed", self.seed, least=0)

    def plan(self, view: View) -> Plan:
        server = view.names[0] if self.server is None else self.server
        check_member(self, "server", server, view)
        arrivals = view.names if self.arrivals is None else tuple(self.arrivals)
        if sorted(arrivals) != sorted(view.names):
            raise PolicyError(
                f"tsengine: arrivals must name each member once: {', '.join(view.names)}", field="arrivals"
            )
        coordinator = _Coordinator(view, random.Random(f"{self.seed} {view.at_s}"))
        return self._plan(view, [Tree(server, coordinator.push(server, arrivals), coordinator.pull(server))])


class _Coordinator:
    def __init__(self, view: View, draw: random.Random) -> None:
        self._view = view
        self._draw = draw
        everything = view.knowledge == "oracle"
        self._known = {p: edge.rate_bps for p, edge in view.edges.items() if everything or edge.source == "measured"}

    def pull(self, server: str) -> dict[str, str]:
        """Each member's server in the broadcast."""
        parents: dict[str, str] = {}
        unserved = [name for name in self._view.names if name != server]
        asking = [(0.0, 0, server)]
        asked = 1
        while unserved and asking:
            now, _, holder = heapq.heappop(asking)
            reachable = [name for name in unserved if (holder, name) in self._view.edges]
            if not reachable:
                continue
            served = self._whom(holder, reachable)
            unserved.remove(served)
            parents[served] = holder
            for name in (holder, served):
                heapq.heappush(asking, (now + self._seconds((holder, served)), asked, name))
                asked += 1
        if unserved:
            raise PolicyError(f"tsengine: no edges lead from {server} to {', '.join(unserved)}")
        return parents

    def _whom(self, holder: str, reachable: Sequence[str]) -> str:
        known = [name for name in reachable if (holder, name) in self._known]
        if known and self._draw.random() < min(len(known) / len(reachable), GREED):
            return max(known, key=lambda name: self._known[holder, name])
        return self._draw.choice(reachable)

    def push(self, server: str, arrivals: Sequence[str]) -> dict[str, str]:
        """The member that each member sends to, to be merged."""
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
            raise PolicyError(f"tsengine: {', '.join(queue)} have no edges along which to merge into {server}")
        return parents

    def _edge(self, one: str, other: str, server: str) -> Pair | None:
        """Along which edge two members merge: into the server, else along the faster one known."""
        both = [pair for pair in ((one, other), (other, one)) if pair in self._view.edges and pair[0] != server]
        return max(both, key=lambda pair: self._known.get(pair, 0.0), default=None)

    def _seconds(self, pair: Pair) -> float:
        return 8 * self._view.model_bytes / self._view.edges[pair].rate_bps
