"""A round of a plan, chunk by chunk: the time it takes on a network, without the network.

Members send chunks as the sync library does: one flow to each next hop, on which the front of every slice goes first
and a mean before a partial sum; a relay adds a chunk to its own and forwards it once it is complete; the root sends
the mean back, with keys once their key is complete. Flows share capacities max-min fairly, and a chunk arrives a
one-way delay after its last byte was sent. What waits for a busy edge takes an auxiliary route where there is one.

What it leaves out: TCP's slow start and losses, and the time that hosts take. The fluid shortcut for networks too
large for it is `cost.predict`: the same model with chunks that vanish.
"""

from __future__ import annotations

import heapq
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
    """A chunk on its way, ordered as senders order them: by its place in its slice first.

    `way` is what it still has to pass, its end included.
    """

    place: int
    kind: int
    tree: int
    order: int
    way: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Simulated:
    """`seconds` until the last member has the mean of everything; `finished_s` of each; bytes by overlay edge."""

    seconds: float
    finished_s: Mapping[str, float]
    edge_bytes: Mapping[Pair, float]


def simulate(plan: Plan, view: View, ready_s: Mapping[str, float] | None = None) -> Simulated:
    """A round among all members under `plan`, each beginning at its `ready_s` (0 by default).

    SimulationError when an edge is missing. About 50 µs a chunk and hop.
    """
    return _Round(plan, view, ready_s or {}).run()


@dataclass(slots=True)
class _Flow:
    """What waits for one next hop. `left` of what is being sent is kept in an array over all flows."""

    delay_s: float
    queue: list[Chunk] = field(default_factory=list)
    sending: Chunk | None = None


@dataclass(slots=True)
class _Slice:
    """A tree's chunks: their bytes, the key of each, and how many of each key's are not reduced yet."""

    sizes: list[float]
    key: list[int]
    open: list[int]


class _Round:
    def __init__(self, plan: Plan, view: View, ready_s: Mapping[str, float]) -> None:
        self._plan = plan
        self._ready_s = ready_s
        self._now = 0.0
        self._order = count()
        self._slices = _cut(plan, view.model_bytes // ELEMENT_BYTES)
        self._build_flows(view)
        self._children = [
            [{m: tree.children(m, of) for m in plan.members} for of in (tree.broadcast, tree.reduce)]
            for tree in plan.trees
        ]
        self._awaited = [
            {m: [len(children[PARTIAL][m]) + 1] * len(part.sizes) for m in plan.members}
            for children, part in zip(self._children, self._slices, strict=True)
        ]
        self._missing = dict.fromkeys(plan.members, sum(len(part.sizes) for part in self._slices))
        self._finished_s = {member: 0.0 for member, missing in self._missing.items() if not missing}
        self._arrivals: list[tuple[float, int, str, Chunk | None]] = []  # None: the member itself is ready

    def _build_flows(self, view: View) -> None:
        limits = Constraints.of(view)
        pairs = {(source, target) for source, target, _ in self._plan.edges()}
        self._beside: dict[Pair, list[tuple[str, ...]]] = {}
        self._relieved_by: dict[Pair, list[Pair]] = {}  # an auxiliary route's first edge → the edges it is for
        for route in self._plan.auxiliary:
            way = (route.source, *route.via, route.target)
            pairs.update(pairwise(way))
            self._beside.setdefault((route.source, route.target), []).append(way[1:])
            self._relieved_by.setdefault((way[0], way[1]), []).append((route.source, route.target))
        if missing := sorted(pairs - limits.drawn.keys()):
            raise SimulationError(f"the plan sends from {missing[0][0]} to {missing[0][1]}, and no edge is there")
        self._pairs = sorted(pairs)
        self._number = {pair: i for i, pair in enumerate(self._pairs)}
        self._flows = [_Flow(view.edge_delay(*pair)) for pair in self._pairs]
        names = sorted({name for pair in self._pairs for name in limits.drawn[pair]})
        index = {name: i for i, name in enumerate(names)}
        routes = [[index[name] for name in limits.drawn[pair]] for pair in self._pairs]
        self._fair = Fair([limits.goodput_bps[name] / 8 for name in names], routes)
        self._left = np.full(len(self._pairs), np.inf)
        self._sent = np.zeros(len(self._pairs))
        self._changed = True

    def run(self) -> Simulated:
        for member in self._plan.members:
            self._arrive_at(self._ready_s.get(member, 0.0), member, None)
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
                _, _, member, chunk = heapq.heappop(self._arrivals)
                self._arrive(member, chunk)
        seconds = max(self._finished_s.values())
        sent = {pair: float(self._sent[i]) for i, pair in enumerate(self._pairs)}
        return Simulated(seconds, self._finished_s, sent)

    def _arrive_at(self, time_s: float, member: str, chunk: Chunk | None) -> None:
        heapq.heappush(self._arrivals, (time_s, next(self._order), member, chunk))

    def _arrive(self, member: str, chunk: Chunk | None) -> None:
        if chunk is None:
            for tree, part in enumerate(self._slices):
                for index in range(len(part.sizes)):
                    self._add(member, tree, index)
        elif len(chunk.way) > 1:
            self._put((member, chunk.way[1]), chunk._replace(way=chunk.way[1:]))
        elif chunk.kind == PARTIAL:
            self._add(member, chunk.tree, chunk.place)
        else:
            self._accept(member, chunk.tree, chunk.place)

    def _add(self, member: str, tree: int, index: int) -> None:
        """One more contribution to a member's partial sum."""
        awaited = self._awaited[tree][member]
        awaited[index] -= 1
        if awaited[index]:
            return
        parent = self._plan.trees[tree].reduce.get(member)
        if parent is not None:
            self._send(member, parent, tree, index, PARTIAL)
            return
        part = self._slices[tree]
        key = part.key[index]
        part.open[key] -= 1
        if part.open[key] == 0:
            for whole in (i for i, its in enumerate(part.key) if its == key):
                self._accept(member, tree, whole)

    def _accept(self, member: str, tree: int, index: int) -> None:
        """A member has the mean of a chunk."""
        self._missing[member] -= 1
        if not self._missing[member]:
            self._finished_s[member] = self._now
        for child in self._children[tree][MEAN][member]:
            self._send(member, child, tree, index, MEAN)

    def _send(self, source: str, target: str, tree: int, index: int, kind: int) -> None:
        self._put((source, target), Chunk(index, kind, tree, next(self._order), (target,)))

    def _put(self, pair: Pair, chunk: Chunk) -> None:
        number = self._number[pair]
        flow = self._flows[number]
        heapq.heappush(flow.queue, chunk)
        if flow.sending is None:
            self._begin_sending(number)
        elif len(chunk.way) == 1:
            self._relieve(pair)

    def _begin_sending(self, number: int) -> None:
        flow = self._flows[number]
        chunk = flow.sending = heapq.heappop(flow.queue)
        self._left[number] = self._slices[chunk.tree].sizes[chunk.place]
        self._sent[number] += self._left[number]
        self._changed = True

    def _end_sending(self, number: int) -> None:
        flow = self._flows[number]
        assert flow.sending is not None
        source, target = self._pairs[number]
        self._arrive_at(self._now + flow.delay_s, target, flow.sending)
        if flow.queue:
            chunk = flow.sending = heapq.heappop(flow.queue)
            self._left[number] = self._slices[chunk.tree].sizes[chunk.place]
            self._sent[number] += self._left[number]
        else:
            flow.sending = None
            self._left[number] = np.inf
            self._changed = True
        for pair in self._relieved_by.get((source, target), ()):
            self._relieve(pair)

    def _relieve(self, pair: Pair) -> None:
        """Move the last of what waits for an edge to auxiliary routes whose first queue is short enough."""
        primary = self._flows[self._number[pair]]
        for way in self._beside.get(pair, ()):
            first = self._flows[self._number[pair[0], way[0]]]
            waiting = [chunk for chunk in primary.queue if len(chunk.way) == 1]
            if len(waiting) > 2 * AUXILIARY_QUEUE and len(first.queue) < AUXILIARY_QUEUE:
                last = max(waiting)
                primary.queue.remove(last)
                heapq.heapify(primary.queue)
                self._put((pair[0], way[0]), last._replace(way=way))


def _cut(plan: Plan, elements: int) -> list[_Slice]:
    """The trees' chunks; a key's end is a chunk's end."""
    step = plan.chunk_bytes // ELEMENT_BYTES
    slices = []
    for part, tree in zip(plan.slices(elements), plan.trees, strict=True):
        ends = cut(tree.keys or (1.0,), part.start, part.stop)
        sizes: list[float] = []
        keys: list[int] = []
        for key, (start, stop) in enumerate(pairwise(ends)):
            for at in range(start, stop, step):
                sizes.append(float(min(step, stop - at) * ELEMENT_BYTES))
                keys.append(key if tree.keys else len(keys))
        open_ = [0] * (max(keys, default=-1) + 1)
        for key in keys:
            open_[key] += 1
        slices.append(_Slice(sizes, keys, open_))
    return slices
