"""Rounds of a plan, chunk by chunk: the time they take on a network, without the network.

Members send chunks as the sync library does: one flow to each next hop, on which all slices advance alike, by parts
of their length, and a mean goes before a partial sum; a relay adds a chunk to its own and forwards it once it is
complete; the root sends the mean back, with keys once their key is complete. Flows share capacities max-min fairly,
and a chunk arrives a one-way delay after its last byte was sent. What waits for a busy edge takes an auxiliary route
where there is one; of that, each connection carries one chunk at a time, until it has come to the route's end.

What it leaves out: TCP's slow start and losses, and the time that hosts take. The fluid shortcut for networks too
large for it is `cost.predict`: the same model with chunks that vanish.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np

from testbed.plan import Plan, cut
from testbed.planning import events
from testbed.planning.bbr import Connections
from testbed.planning.constraints import Constraints
from testbed.planning.events import NONE, AuxiliaryRoutes, FlowNetwork, Items, MemberWork
from testbed.planning.view import Pair, View

#: Bytes of an element.
ELEMENT_BYTES = 4


class SimulationError(ValueError):
    """A plan that uses an edge which the view lacks."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """`seconds` of a round until the last member has the mean of everything, a mean over rounds that follow another.

    `finished_s` is when each member had the first round's; `edge_bytes` are all rounds', by overlay edge.
    """

    seconds: float
    finished_s: Mapping[str, float]
    edge_bytes: Mapping[Pair, float]


def simulate(
    plan: Plan,
    view: View,
    ready_s: Mapping[str, float] | None = None,
    rounds: int = 1,
    compute_s: Mapping[str, float] | None = None,
) -> Simulated:
    """A round among all members under `plan`, each beginning at its `ready_s` (0 by default).

    Of several `rounds`, which a member begins `compute_s` after it is done with the one before, the time is that of
    those after the first, whole: from the end of one to the end of the next. A member that is done early begins to
    send, so they are shorter. SimulationError when an edge is missing. About 2 µs a chunk and hop.
    """
    own = PlanRounds(plan, view.model_bytes)
    found = own.run(own.network(Constraints.of(view), view.edge_delay), ready_s or {}, rounds, compute_s or {})
    ends = found.finished_s.max(axis=1)
    seconds = ends[0] if rounds == 1 else (ends[-1] - ends[0]) / (rounds - 1)
    finished_s = dict(zip(plan.members, found.finished_s[0].tolist(), strict=True))
    return Simulated(float(seconds), finished_s, own.edge_bytes(found))


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A chunk of a tree: its position among all trees' chunks, bytes, its key, and the part of its slice before it."""

    position: int
    size: float
    key: int
    front: float


class PlanRounds:
    """A plan's rounds as numbers: what goes over which flow, whatever the network is."""

    def __init__(self, plan: Plan, model_bytes: int) -> None:
        self._plan = plan
        self._member = {name: m for m, name in enumerate(plan.members)}
        self._trees = _cut(plan, model_bytes // ELEMENT_BYTES)
        self._chunks = list(chain.from_iterable(self._trees))
        self._hops = self._make_hops()
        self._items = self._make_items()
        self._auxiliary = self._make_auxiliary()

    @property
    def pairs(self) -> list[Pair]:
        """The (sender, receiver) of each flow; flows of auxiliary routes come beside those of their hops."""
        return [(source, target) for source, target, _ in self._hops]

    @property
    def items(self) -> Items:
        """What flows carry in a round."""
        return self._items

    def coded(self, parts: Mapping[tuple[str, str, bool], float]) -> PlanRounds:
        """The same, where chunks become those parts of their bytes: by sender, receiver and whether they are means."""
        each = np.array([[parts.get((*pair, is_mean), 1.0) for is_mean in (False, True)] for pair in self.pairs])
        other = copy(self)
        other._items = self._items._replace(size=self._items.size * each[self._items.flow, self._items.is_mean])
        return other

    def network(
        self, limits: Constraints, delay_s: Callable[[str, str], float], names: Sequence[str] | None = None
    ) -> FlowNetwork:
        """The flows on a network; SimulationError when an edge is missing. `names` are those of its capacities, in an
        order of the caller's: networks that follow one another in a round have the same."""
        if missing := [pair for pair in self.pairs if pair not in limits.drawn]:
            raise SimulationError(f"the plan sends from {missing[0][0]} to {missing[0][1]}, and no edge is there")
        names = names or sorted({name for pair in self.pairs for name in limits.drawn[pair]})
        number = {name: i for i, name in enumerate(names)}
        drawn = [[number[name] for name in limits.drawn[pair]] for pair in self.pairs]
        return FlowNetwork(
            target=_ints(self._member[target] for _, target in self.pairs),
            delay_s=np.array([delay_s(*pair) for pair in self.pairs], dtype=np.float64),
            draws=_starts(drawn),
            drawn=_ints(chain.from_iterable(drawn)),
            capacity=np.array([limits.goodput_bps[name] / 8 for name in names], dtype=np.float64),
        )

    def run(
        self,
        network: FlowNetwork,
        ready_s: Mapping[str, float],
        rounds: int = 1,
        compute_s: Mapping[str, float] | None = None,
        later: Sequence[tuple[float, FlowNetwork]] = (),
        connections: Connections | None = None,
    ) -> events.Found:
        """Rounds on the network, and on those that it becomes later; see `simulate` and `events.run`."""
        work = self._make_work(ready_s, compute_s or {})
        return events.run(network, self._items, work, self._auxiliary, rounds, later, connections)

    def edge_bytes(self, found: events.Found) -> dict[Pair, float]:
        """The bytes that each overlay edge carried."""
        carried: dict[Pair, float] = {}
        for pair, size in zip(self.pairs, found.sent.tolist(), strict=True):
            carried[pair] = carried.get(pair, 0.0) + size
        return carried

    def _make_hops(self) -> dict[tuple[str, str, int], int]:
        """Flows by (source, target, level): auxiliary routes have their own, by how many hops are left of them."""
        hops = {(source, target, 0) for source, target, _ in self._plan.edges()}
        for route in self._plan.auxiliary:
            path = (route.source, *route.via, route.target)
            hops.update((a, b, len(path) - 1 - i) for i, (a, b) in enumerate(pairwise(path)))
        return {hop: f for f, hop in enumerate(sorted(hops))}

    def _make_items(self) -> Items:
        """Items in the order in which senders prefer them: the front of each slice first, a mean before a sum."""
        members, positions = len(self._member), len(self._chunks)
        wanted: list[list[tuple[float, bool, int, int, int, int]]] = [[] for _ in self._hops]
        for t, tree in enumerate(self._plan.trees):
            ways = [(child, parent, False) for child, parent in tree.reduce.items()]
            ways += [(parent, child, True) for child, parent in tree.broadcast.items()]
            for source, target, is_mean in ways:
                m, to = self._member[source], self._member[target]
                of = wanted[self._hops[source, target, 0]]
                of += [(chunk.front, not is_mean, t, chunk.position, m, to) for chunk in self._trees[t]]
        partial, means = (np.full((members, positions), NONE, dtype=np.int64) for _ in range(2))
        flow: list[int] = []
        size: list[float] = []
        position: list[int] = []
        is_means: list[bool] = []
        sibling: list[int] = []
        for f, of in enumerate(wanted):
            for _, is_partial, _, p, m, _ in sorted(of):
                sibling.append(NONE if is_partial else int(means[m, p]))
                (partial if is_partial else means)[m, p] = len(flow)
                flow.append(f)
                position.append(p)
                size.append(self._chunks[p].size)
                is_means.append(not is_partial)
        return Items(
            first=_starts(wanted),
            flow=_ints(flow),
            size=np.array(size, dtype=np.float64),
            position=_ints(position),
            is_mean=_ints(is_means),
            partial=partial,
            means=means,
            sibling=_ints(sibling),
        )

    def _make_auxiliary(self) -> AuxiliaryRoutes:
        relieves, direct, hops = [], [], []
        for route in self._plan.auxiliary:
            if (route.source, route.target, 0) not in self._hops:
                continue  # nothing is sent there that it could take over
            path = (route.source, *route.via, route.target)
            relieves.append(self._hops[route.source, route.target, 0])
            direct.append(self._hops.get((path[0], path[1], 0), NONE))
            hops.append([self._hops[a, b, len(path) - 1 - i] for i, (a, b) in enumerate(pairwise(path))])
        return AuxiliaryRoutes(_ints(relieves), _ints(direct), _starts(hops), _ints(chain.from_iterable(hops)))

    def _make_work(self, ready_s: Mapping[str, float], compute_s: Mapping[str, float]) -> MemberWork:
        awaited = np.ones((len(self._member), len(self._chunks)), dtype=np.int64)
        for tree, chunks in zip(self._plan.trees, self._trees, strict=True):
            positions = [chunk.position for chunk in chunks]
            for parent in tree.reduce.values():
                awaited[self._member[parent], positions] += 1
        keys = [chunk.key for chunk in self._chunks]
        firsts = [position for position, key in enumerate(keys) if position == 0 or keys[position - 1] != key]
        return MemberWork(
            awaited=awaited,
            key=_ints(keys),
            key_first=_ints(firsts),
            begin_s=np.array([ready_s.get(name, 0.0) for name in self._plan.members], dtype=np.float64),
            compute_s=np.array([compute_s.get(name, 0.0) for name in self._plan.members], dtype=np.float64),
        )


def _cut(plan: Plan, elements: int) -> list[list[_Chunk]]:
    """The trees' chunks; a key's end is a chunk's end. Without keys, each chunk is a key of its own."""
    step = plan.chunk_bytes // ELEMENT_BYTES
    trees: list[list[_Chunk]] = []
    position = keys = 0
    for part, tree in zip(plan.slices(elements), plan.trees, strict=True):
        chunks: list[_Chunk] = []
        for start, stop in pairwise(cut(tree.keys or (1.0,), part.start, part.stop)):
            for at in range(start, stop, step):
                size = float(min(step, stop - at) * ELEMENT_BYTES)
                chunks.append(_Chunk(position, size, keys, (at - part.start) / (part.stop - part.start)))
                position += 1
                keys += not tree.keys
            keys += bool(tree.keys) and stop > start
        trees.append(chunks)
    return trees


def _ints(values: object) -> events.Ints:
    return np.array(list(values), dtype=np.int64)  # type: ignore[call-overload]


def _starts(lists: object) -> events.Ints:
    """Where each of the lists begins when they stand one after the other, and where the last one ends."""
    return np.concatenate([[0], np.cumsum([len(each) for each in lists])]).astype(np.int64)  # type: ignore[attr-defined]
