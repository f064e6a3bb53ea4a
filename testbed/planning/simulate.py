"""A round of a plan, chunk by chunk: the time it takes on a network, without the network.

Members send chunks as the sync library does: one flow to each next hop, on which all slices advance alike, by parts
of their length, and a mean goes before a partial sum; a relay adds a chunk to its own and forwards it once it is
complete; the root sends the mean back, with keys once their key is complete. Flows share capacities max-min fairly,
and a chunk arrives a one-way delay after its last byte was sent. What waits for a busy edge takes an auxiliary route
where there is one; of that, each connection carries one chunk at a time, until it has come to the route's end.

What it leaves out: TCP's slow start and losses, and the time that hosts take. The fluid shortcut for networks too
large for it is `cost.predict`: the same model with chunks that vanish.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import NamedTuple

import numpy as np

from testbed.plan import Plan, cut
from testbed.planning.constraints import Constraints
from testbed.planning.fair import SAME, Fair
from testbed.planning.view import Pair, View

#: Bytes of an element.
ELEMENT_BYTES = 4

#: NetStorm's rule: a chunk leaves a queue of more than 2L for an auxiliary route whose first queue has less than L.
AUXILIARY_QUEUE = 1

MEAN, PARTIAL = 0, 1


class SimulationError(ValueError):
    """A plan that uses an edge which the view lacks."""


class Chunk(NamedTuple):
    """A chunk on its way, ordered as senders order them: by its round, then by how far behind its slice's `front`.

    `place` is its number in its slice, `way` what it still has to pass, its end included; `aside` when it goes by an
    auxiliary route, whose connections it has `passed` (their numbers).
    """

    round: int
    front: float
    kind: int
    tree: int
    order: int
    place: int
    way: tuple[str, ...]
    aside: bool = False
    passed: tuple[int, ...] = ()

    @property
    def lane(self) -> int:
        """The connection it takes to the first of its way: auxiliary routes have their own, by what is left of them."""
        return len(self.way) if self.aside else 0


class Taken(NamedTuple):
    """Word, come back to who sent a chunk on an auxiliary route, that its connection (by number) may carry another."""

    number: int


#: What comes to a member: a chunk, such a word, or the beginning of a round, by its number.
What = Chunk | Taken | int


@dataclass(frozen=True, slots=True)
class Simulated:
    """`seconds` of a round until the last member has the mean of everything, a mean over rounds that follow another.

    `finished_s` is when each member had the first round's; `edge_bytes` are all rounds', by overlay edge.
    """

    seconds: float
    finished_s: Mapping[str, float]
    edge_bytes: Mapping[Pair, float]


def simulate(plan: Plan, view: View, ready_s: Mapping[str, float] | None = None, rounds: int = 1) -> Simulated:
    """A round among all members under `plan`, each beginning at its `ready_s` (0 by default).

    Of several `rounds`, which a member begins one after the other as it is done with them, the time is that of those
    after the first: who is done early sends ahead, so they are shorter. SimulationError when an edge is missing. About
    50 µs a chunk and hop.
    """
    return _Rounds(plan, view, ready_s or {}, rounds).run()


@dataclass(slots=True)
class _Flow:
    """What waits for one connection to a next hop. `left` of what is being sent is kept in an array over all flows.

    On an auxiliary route a chunk is `sending` until word of it has come back.
    """

    source: str
    target: str
    delay_s: float
    queue: list[Chunk] = field(default_factory=list)
    sending: Chunk | None = None


@dataclass(slots=True)
class _Slice:
    """A tree's chunks: their bytes, the key of each, and the part of the slice that comes before it."""

    sizes: list[float]
    key: list[int]
    front: list[float]


class _Open:
    """What is not done yet of a round: by tree, contributions each member awaits of each chunk, and chunks of each
    key that the root has not reduced; by member, means that have not come."""

    def __init__(self, plan: Plan, slices: list[_Slice]) -> None:
        self.awaited = [
            {m: [len(tree.children(m, tree.reduce)) + 1] * len(part.sizes) for m in plan.members}
            for tree, part in zip(plan.trees, slices, strict=True)
        ]
        self.keyed = [Counter(part.key) for part in slices]
        self.missing = dict.fromkeys(plan.members, sum(len(part.sizes) for part in slices))
        self.finished_s: dict[str, float] = {}


class _Rounds:
    def __init__(self, plan: Plan, view: View, ready_s: Mapping[str, float], rounds: int) -> None:
        self._plan = plan
        self._ready_s = ready_s
        self._now = 0.0
        self._order = count()
        self._slices = _cut(plan, view.model_bytes // ELEMENT_BYTES)
        self._build_flows(view)
        self._mean_to = [{m: tree.children(m, tree.broadcast) for m in plan.members} for tree in plan.trees]
        self._open = [_Open(plan, self._slices) for _ in range(rounds)]
        self._arrivals: list[tuple[float, int, str, What]] = []

    def _build_flows(self, view: View) -> None:
        limits = Constraints.of(view)
        hops = {(source, target, 0) for source, target, _ in self._plan.edges()}
        self._beside: dict[Pair, list[tuple[str, ...]]] = {}
        self._relieved_by: dict[Pair, list[Pair]] = {}  # an auxiliary route's first edge → the edges it is for
        for route in self._plan.auxiliary:
            way = (route.source, *route.via, route.target)
            hops.update((a, b, len(way) - 1 - i) for i, (a, b) in enumerate(pairwise(way)))
            self._beside.setdefault((route.source, route.target), []).append(way[1:])
            self._relieved_by.setdefault((way[0], way[1]), []).append((route.source, route.target))
        pairs = sorted({(source, target) for source, target, _ in hops})
        if missing := [pair for pair in pairs if pair not in limits.drawn]:
            raise SimulationError(f"the plan sends from {missing[0][0]} to {missing[0][1]}, and no edge is there")
        self._number = {hop: i for i, hop in enumerate(sorted(hops))}
        self._flows = [_Flow(a, b, view.edge_delay(a, b)) for a, b, _ in self._number]
        names = sorted({name for pair in pairs for name in limits.drawn[pair]})
        index = {name: i for i, name in enumerate(names)}
        routes = [[index[name] for name in limits.drawn[a, b]] for a, b, _ in self._number]
        self._fair = Fair([limits.goodput_bps[name] / 8 for name in names], routes)
        self._left = np.full(len(self._flows), np.inf)
        self._sent = np.zeros(len(self._flows))
        self._changed = True

    def run(self) -> Simulated:
        for member in self._plan.members:
            self._arrive_at(self._ready_s.get(member, 0.0), member, 0)
        busy, rates = np.zeros(0, dtype=np.int64), np.zeros(0)
        while True:
            if self._changed:
                busy = np.flatnonzero(np.isfinite(self._left))
                rates = self._fair.rates(busy)
                self._changed = False
            needed = self._left[busy] / rates
            step = float(needed.min(initial=np.inf))
            arrival_s = self._arrivals[0][0] if self._arrivals else np.inf
            if step == arrival_s == np.inf:
                break
            if arrival_s <= self._now + step:
                step, self._now = arrival_s - self._now, arrival_s
            else:
                self._now += step
            self._left[busy] -= np.where(np.isfinite(rates), rates, 0.0) * step
            for number in busy[needed <= step * (1 + SAME)]:
                self._end_sending(int(number))
            while self._arrivals and self._arrivals[0][0] <= self._now:
                _, _, member, what = heapq.heappop(self._arrivals)
                self._arrive(member, what)
        return self._simulated()

    def _simulated(self) -> Simulated:
        ends = [max(one.finished_s.values()) for one in self._open]
        seconds = ends[0] if len(ends) == 1 else (ends[-1] - ends[0]) / (len(ends) - 1)
        sent: dict[Pair, float] = {}
        for flow, size in zip(self._flows, self._sent.tolist(), strict=True):
            sent[flow.source, flow.target] = sent.get((flow.source, flow.target), 0.0) + size
        return Simulated(seconds, self._open[0].finished_s, sent)

    def _arrive_at(self, time_s: float, member: str, what: What) -> None:
        heapq.heappush(self._arrivals, (time_s, next(self._order), member, what))

    def _arrive(self, member: str, what: What) -> None:
        if isinstance(what, int):
            self._begin(member, what)
        elif isinstance(what, Taken):
            self._go_on(what.number)
        elif len(what.way) > 1:
            self._put(member, what._replace(way=what.way[1:]))
        else:
            self._send_word(what)
            take = self._add if what.kind == PARTIAL else self._accept
            take(what.round, member, what.tree, what.place)

    def _send_word(self, chunk: Chunk) -> None:
        """Back along the connections of an auxiliary route."""
        at_s = self._now
        for number in reversed(chunk.passed):
            at_s += self._flows[number].delay_s
            self._arrive_at(at_s, self._flows[number].source, Taken(number))

    def _begin(self, member: str, number: int) -> None:
        """A member enters a round, and adds its own."""
        if not self._open[number].missing[member]:  # a model without elements
            self._finish(number, member)
        for tree, part in enumerate(self._slices):
            for index in range(len(part.sizes)):
                self._add(number, member, tree, index)

    def _add(self, number: int, member: str, tree: int, index: int) -> None:
        """One more contribution to a member's partial sum."""
        now = self._open[number]
        awaited = now.awaited[tree][member]
        awaited[index] -= 1
        if awaited[index]:
            return
        parent = self._plan.trees[tree].reduce.get(member)
        if parent is not None:
            self._send(number, member, parent, tree, index, PARTIAL)
            return
        keys = self._slices[tree].key
        key = keys[index]
        now.keyed[tree][key] -= 1
        if now.keyed[tree][key] == 0:
            for whole in (i for i, its in enumerate(keys) if its == key):
                self._accept(number, member, tree, whole)

    def _accept(self, number: int, member: str, tree: int, index: int) -> None:
        """A member has the mean of a chunk."""
        missing = self._open[number].missing
        missing[member] -= 1
        for child in self._mean_to[tree][member]:
            self._send(number, member, child, tree, index, MEAN)
        if not missing[member]:
            self._finish(number, member)

    def _finish(self, number: int, member: str) -> None:
        """A member has the mean of everything, and goes on."""
        self._open[number].finished_s[member] = self._now
        if number + 1 < len(self._open):
            self._arrive_at(self._now, member, number + 1)

    def _send(self, number: int, source: str, target: str, tree: int, index: int, kind: int) -> None:
        front = self._slices[tree].front[index]
        self._put(source, Chunk(number, front, kind, tree, next(self._order), index, (target,)))

    def _put(self, source: str, chunk: Chunk) -> None:
        number = self._number[source, chunk.way[0], chunk.lane]
        flow = self._flows[number]
        heapq.heappush(flow.queue, chunk)
        if flow.sending is None:
            self._begin_sending(number)
        elif not chunk.lane:
            self._relieve((source, chunk.way[0]))

    def _begin_sending(self, number: int) -> None:
        flow = self._flows[number]
        chunk = heapq.heappop(flow.queue)
        flow.sending = chunk._replace(passed=(*chunk.passed, number)) if chunk.aside else chunk
        self._changed |= not np.isfinite(self._left[number])
        self._left[number] = self._slices[chunk.tree].sizes[chunk.place]
        self._sent[number] += self._left[number]

    def _end_sending(self, number: int) -> None:
        flow = self._flows[number]
        assert flow.sending is not None
        self._arrive_at(self._now + flow.delay_s, flow.target, flow.sending)
        if flow.sending.aside:
            self._left[number] = np.inf
            self._changed = True
        else:
            self._go_on(number)

    def _go_on(self, number: int) -> None:
        """A connection has nothing on its way any more."""
        flow = self._flows[number]
        if flow.queue:
            self._begin_sending(number)
        else:
            flow.sending = None
            self._left[number] = np.inf
            self._changed = True
        for pair in self._relieved_by.get((flow.source, flow.target), ()):
            self._relieve(pair)

    def _relieve(self, pair: Pair) -> None:
        """Move the first of what waits for an edge to auxiliary routes that are free."""
        primary = self._flows[self._number[*pair, 0]]
        for way in self._beside.get(pair, ()):
            direct = self._number.get((pair[0], way[0], 0))
            waiting = len(self._flows[direct].queue) if direct is not None else 0
            lane = self._flows[self._number[pair[0], way[0], len(way)]]
            free = waiting < AUXILIARY_QUEUE and lane.sending is None
            if len(primary.queue) > 2 * AUXILIARY_QUEUE and free:
                chunk = heapq.heappop(primary.queue)
                self._put(pair[0], chunk._replace(way=way, aside=True))


def _cut(plan: Plan, elements: int) -> list[_Slice]:
    """The trees' chunks; a key's end is a chunk's end."""
    step = plan.chunk_bytes // ELEMENT_BYTES
    slices = []
    for part, tree in zip(plan.slices(elements), plan.trees, strict=True):
        ends = cut(tree.keys or (1.0,), part.start, part.stop)
        sizes: list[float] = []
        keys: list[int] = []
        front: list[float] = []
        for key, (start, stop) in enumerate(pairwise(ends)):
            for at in range(start, stop, step):
                keys.append(key if tree.keys else len(keys))
                sizes.append(float(min(step, stop - at) * ELEMENT_BYTES))
                front.append((at - part.start) / (part.stop - part.start))
        slices.append(_Slice(sizes, keys, front))
    return slices
