"""Rounds by the fluid model, for networks too large for chunks: `planning.cost` over links that change meanwhile.

    a member's part of a round  =  the slowest way to the root, from when its member begins  +  drain  +  its way back

A round advances by 1/T in a second in which it would take T on the network as it is: where links change, T does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from testbed.plan import Plan, Tree
from testbed.planning import Pair
from testbed.run.errors import RunFailed
from testbed.simulation.network import NOWHERE, NetworkState, SimulatedNetwork
from testbed.simulation.payload import Payload, Way
from testbed.simulation.round import Recent, RoundModel, SimulatedRound, Transfer

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class FluidModel(RoundModel):
    """Chunks that vanish, and links that drain what all trees put on them.

    Keys are not in it: RunFailed for a plan that has some, and for a round that lasts for `timeout_s`.
    """

    name = "fluid"

    def __init__(self, network: SimulatedNetwork, timeout_s: float) -> None:
        self._network = network
        self._timeout_s = timeout_s
        self._planned = Recent(PlanFlows)

    def reduced(self, plan: Plan, began_s: Mapping[str, float], payload: Payload) -> SimulatedRound:
        flows = self._planned.of(plan, payload.bytes)
        if not flows.pairs:
            return SimulatedRound(began_s, began_s, {}, self._network.at(min(began_s.values())))
        if payload.coded:
            flows = flows.coded(payload.coded)
        began = np.array([began_s[name] for name in plan.members])
        first_s, done = float(began.min()), 0.0
        at_s, network = first_s, self._network.at(first_s)
        while True:
            paths = flows.on(network)
            finished = flows.finished(paths, began)
            whole_s = float(finished.max()) - first_s
            until_s = self._network.next_change_s(network)
            if done + (until_s - at_s) / whole_s >= 1:
                break
            done += (until_s - at_s) / whole_s
            if until_s - first_s > self._timeout_s:
                raise RunFailed(f"the round that began after {first_s:.1f} s is not over within {self._timeout_s:g} s")
            at_s, network = until_s, self._network.at(until_s)
        stretched = (at_s + (1 - done) * whole_s - first_s) / whole_s
        ends = np.maximum(first_s + (finished - first_s) * stretched, began).tolist()
        finished_s = dict(zip(plan.members, ends, strict=True))
        return SimulatedRound(began_s, finished_s, flows.transfers(paths, float(began.max())), network)


@dataclass(frozen=True, slots=True)
class Paths:
    """Of each edge of a plan: seconds one way, bytes/s that it carries alone and beside the others that share its
    links, and the seconds that its slowest link needs for all of a round."""

    delay_s: Floats
    alone: Floats
    shared: Floats
    drain_s: float


class PlanFlows:
    """A plan's edges as numbers, and its trees level by level."""

    def __init__(self, plan: Plan, model_bytes: int) -> None:
        if any(tree.keys for tree in plan.trees):
            raise RunFailed(f"a plan of {plan.policy} has keys, and the fluid model knows of none")
        self._ways: dict[Way, float] = {}
        for tree in plan.trees:
            edges = [(child, parent, False) for child, parent in tree.reduce.items()]
            for way in (*edges, *((parent, child, True) for child, parent in tree.broadcast.items())):
                self._ways[way] = self._ways.get(way, 0.0) + tree.share * model_bytes
        self.pairs = list(dict.fromkeys((source, target) for source, target, _ in self._ways))
        self._sizes = self._sized({})
        number = {pair: e for e, pair in enumerate(self.pairs)}
        member = {name: m for m, name in enumerate(plan.members)}
        self._chunks = [min(plan.chunk_bytes, tree.share * model_bytes) for tree in plan.trees]
        self._up = [levels(tree, tree.reduce, member, number, towards_root=True) for tree in plan.trees]
        self._down = [levels(tree, tree.broadcast, member, number, towards_root=False) for tree in plan.trees]
        self._routed: tuple[object, Ints, list[str]] | None = None

    def coded(self, parts: Mapping[Way, float]) -> PlanFlows:
        """The same, where of each way's bytes that part travels."""
        other = copy(self)
        other._sizes = self._sized(parts)
        return other

    def _sized(self, parts: Mapping[Way, float]) -> Floats:
        sizes = dict.fromkeys(self.pairs, 0.0)
        for (source, target, is_mean), size in self._ways.items():
            sizes[source, target] += size * parts.get((source, target, is_mean), 1.0)
        return np.array(list(sizes.values()))

    def on(self, network: NetworkState) -> Paths:
        """The edges on a network. Which links they take is looked up once for its routes."""
        if self._routed is None or self._routed[0] is not network.routes:
            drawn = network.constraints(self.pairs).drawn
            names = sorted({name for its in drawn.values() for name in its})
            index = {name: i for i, name in enumerate(names)}
            width = max(len(its) for its in drawn.values())
            links = np.full((len(self.pairs), width), len(names))
            for e, pair in enumerate(self.pairs):
                links[e, : len(drawn[pair])] = [index[name] for name in drawn[pair]]
            self._routed = network.routes, links, names
        _, links, names = self._routed
        rates, delays = network.rates_and_delays(names)
        rates[[name == NOWHERE for name in names]] = 0.0
        loads = np.bincount(links.ravel(), weights=np.repeat(self._sizes, links.shape[1]), minlength=len(names) + 1)
        users = np.bincount(links.ravel(), minlength=len(names) + 1)
        rates, delays = np.append(rates, inf), np.append(delays, 0.0)
        with np.errstate(divide="ignore"):
            drain_s = float(np.max(loads[:-1] / rates[:-1], initial=0.0))
        return Paths(
            delay_s=delays[links].sum(axis=1),
            alone=rates[links].min(axis=1),
            shared=(rates / np.maximum(users, 1))[links].min(axis=1),
            drain_s=drain_s,
        )

    def finished(self, paths: Paths, began: Floats) -> Floats:
        """When each member has the mean of everything, if each begins at its moment and the network stays so; never
        where an edge leads nowhere."""
        if not paths.alone.all():
            return np.full(len(began), inf)
        ends = np.array(began)
        for chunk, up, down in zip(self._chunks, self._up, self._down, strict=True):
            chunk_s = chunk / paths.alone
            there, slow_there = ways(up, paths.delay_s + chunk_s, chunk_s, len(began))
            back, slow_back = ways(down, paths.delay_s + chunk_s, chunk_s, len(began))
            last = int(np.argmax(began + there - slow_there))
            whole = began[last] + there[last] - slow_there[last]
            ends = np.maximum(ends, whole + back - np.maximum(slow_back - slow_there[last], 0) + paths.drain_s)
        return ends

    def transfers(self, paths: Paths, began_s: float) -> dict[Pair, Sequence[Transfer]]:
        """What each edge sent, as if all of it went at once."""
        seconds, delay_s = (self._sizes / paths.shared).tolist(), paths.delay_s.tolist()
        return {
            pair: (Transfer(began_s, began_s + lasts, began_s + late, began_s + late + lasts, size),)
            for pair, lasts, late, size in zip(self.pairs, seconds, delay_s, self._sizes.tolist(), strict=True)
        }


#: Of a level of a tree: members, their parents, and the edges between.
Level = tuple[Ints, Ints, Ints]


def levels(
    tree: Tree, parents: Mapping[str, str], member: Mapping[str, int], number: Mapping[Pair, int], towards_root: bool
) -> list[Level]:
    """A tree's members by their distance from the root, the nearest first."""
    children: dict[str, list[str]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    found: list[Level] = []
    level = children.get(tree.root, [])
    while level:
        edges = [(child, parents[child]) if towards_root else (parents[child], child) for child in level]
        rows = [member[c] for c in level], [member[parents[c]] for c in level], [number[edge] for edge in edges]
        found.append((np.array(rows[0]), np.array(rows[1]), np.array(rows[2])))
        level = [child for parent in level for child in children.get(parent, ())]
    return found


def ways(tree: Sequence[Level], seconds: Floats, chunk_s: Floats, members: int) -> tuple[Floats, Floats]:
    """Of each member the seconds of its way to or from the root, and the slowest chunk time on it."""
    way, slowest = np.zeros(members), np.zeros(members)
    for who, parents, edges in tree:
        way[who] = way[parents] + seconds[edges]
        slowest[who] = np.maximum(slowest[parents], chunk_s[edges])
    return way, slowest
