"""The fluid model of a round, for networks too large for chunks: `planning.cost` over links that change meanwhile.

    a member's part of a round  =  the slowest way to the root, from when its member begins  +  drain  +  its way back

If a round would take T seconds on the network of the moment, 1/T of it is done each second. T changes with the links.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from math import inf

import numpy as np

from testbed.plan import Plan, Tree
from testbed.planning import Pair
from testbed.planning.simulate import TreeEdge
from testbed.run.errors import RunFailed
from testbed.simulation.network import NOWHERE, Floats, Ints, NetworkState, SimulatedNetwork
from testbed.simulation.round_model import Payload, RecentPlans, RoundModel, SimulatedRound, Transfer

#: A level of a tree: its members, their parents, and the edges between them, as numbers.
Level = tuple[Ints, Ints, Ints]


class FluidModel(RoundModel):
    """Simulates chunks of vanishing size, over links that drain the bytes of all trees.

    The model has no keys: it raises RunFailed for a plan with some.
    """

    name = "fluid"

    def __init__(self, network: SimulatedNetwork, timeout_s: float) -> None:
        """Make a model over `network`. A round that lasts for longer than `timeout_s` fails the run, as live."""
        super().__init__(network, timeout_s)
        self._planned = RecentPlans(PlanFlows)

    def _reduce(self, plan: Plan, began_s: Mapping[str, float], payload: Payload) -> SimulatedRound:
        flows = self._planned.get(plan, payload.bytes)
        if not flows.pairs:
            return SimulatedRound(began_s, began_s, {}, self._network.at(min(began_s.values())))
        if payload.coded:
            flows = flows.coded(payload.coded)
        began = np.array([began_s[name] for name in plan.members])
        first_s, done = float(began.min()), 0.0
        at_s, state = first_s, self._network.at(first_s)
        first = state
        while True:
            paths = flows.paths(state)
            finished = flows.finished(paths, began)
            whole_s = float(finished.max()) - first_s
            until_s = self._network.next_change_s(state)
            if done + (until_s - at_s) / whole_s >= 1:
                break
            done += (until_s - at_s) / whole_s
            if until_s - first_s > self._timeout_s:
                raise self._out_of_time(first_s)
            at_s, state = until_s, self._network.at(until_s)
        stretched = (at_s + (1 - done) * whole_s - first_s) / whole_s
        ends = np.maximum(first_s + (finished - first_s) * stretched, began).tolist()
        finished_s = dict(zip(plan.members, ends, strict=True))
        return SimulatedRound(began_s, finished_s, flows.transfers(paths, float(began.max())), first)


@dataclass(frozen=True, slots=True)
class Paths:
    """The paths of a plan's edges: arrays with an element for each edge."""

    #: Seconds one way.
    delay_s: Floats
    #: Bytes/s of the edge alone, and beside the other edges that share its links.
    alone: Floats
    shared: Floats
    #: Seconds that the slowest link needs for its bytes of a round.
    drain_s: float


class PlanFlows:
    """A plan's edges as numbers, and its trees level by level."""

    def __init__(self, plan: Plan, model_bytes: int) -> None:
        if any(tree.keys for tree in plan.trees):
            raise RunFailed(
                f"the plan of {plan.policy} has keys, which the fluid model lacks: use another policy, or fewer workers"
            )
        self._edges: dict[TreeEdge, float] = {}
        for tree in plan.trees:
            edges = [(child, parent, False) for child, parent in tree.reduce.items()]
            for edge in (*edges, *((parent, child, True) for child, parent in tree.broadcast.items())):
                self._edges[edge] = self._edges.get(edge, 0.0) + tree.share * model_bytes
        self.pairs = list(dict.fromkeys((source, target) for source, target, _ in self._edges))
        self._sizes = self._sized({})
        number = {pair: e for e, pair in enumerate(self.pairs)}
        member = {name: m for m, name in enumerate(plan.members)}
        self._chunks = [min(plan.chunk_bytes, tree.share * model_bytes) for tree in plan.trees]
        self._up = [_levels(tree, tree.reduce, member, number, towards_root=True) for tree in plan.trees]
        self._down = [_levels(tree, tree.broadcast, member, number, towards_root=False) for tree in plan.trees]
        self._routed: tuple[object, Ints, list[str]] | None = None

    def coded(self, parts: Mapping[TreeEdge, float]) -> PlanFlows:
        """Return the flows with the given fraction of each edge's bytes."""
        other = copy(self)
        other._sizes = self._sized(parts)
        return other

    def _sized(self, parts: Mapping[TreeEdge, float]) -> Floats:
        sizes = dict.fromkeys(self.pairs, 0.0)
        for (source, target, is_mean), size in self._edges.items():
            sizes[source, target] += size * parts.get((source, target, is_mean), 1.0)
        return np.array(list(sizes.values()))

    def paths(self, state: NetworkState) -> Paths:
        """Return the edges' paths on the network. The links of each path are looked up once for the same routes."""
        if self._routed is None or self._routed[0] is not state.routes:
            drawn = state.constraints(self.pairs).drawn
            names = sorted({name for its in drawn.values() for name in its})
            index = {name: i for i, name in enumerate(names)}
            width = max(len(its) for its in drawn.values())
            links = np.full((len(self.pairs), width), len(names))
            for e, pair in enumerate(self.pairs):
                links[e, : len(drawn[pair])] = [index[name] for name in drawn[pair]]
            self._routed = state.routes, links, names
        _, links, names = self._routed
        rates, delays = state.rates_and_delays(names)
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
        """Return when each member has the whole mean on an unchanging network; infinite if an edge has no route.

        `began` says when each member begins. All moments are in seconds after training began.
        """
        if not paths.alone.all():
            return np.full(len(began), inf)
        ends = np.array(began)
        for chunk, up, down in zip(self._chunks, self._up, self._down, strict=True):
            chunk_s = chunk / paths.alone
            there, slow_there = _path_times(up, paths.delay_s + chunk_s, chunk_s, len(began))
            back, slow_back = _path_times(down, paths.delay_s + chunk_s, chunk_s, len(began))
            last = int(np.argmax(began + there - slow_there))
            whole = began[last] + there[last] - slow_there[last]
            ends = np.maximum(ends, whole + back - np.maximum(slow_back - slow_there[last], 0) + paths.drain_s)
        return ends

    def transfers(self, paths: Paths, began_s: float) -> dict[Pair, Sequence[Transfer]]:
        """Return one transfer for each edge, as if all edges sent their bytes at once."""
        seconds, delay_s = (self._sizes / paths.shared).tolist(), paths.delay_s.tolist()
        return {
            pair: (Transfer(began_s, began_s + lasts, began_s + late, began_s + late + lasts, size),)
            for pair, lasts, late, size in zip(self.pairs, seconds, delay_s, self._sizes.tolist(), strict=True)
        }


def _levels(
    tree: Tree, parents: Mapping[str, str], member: Mapping[str, int], number: Mapping[Pair, int], towards_root: bool
) -> list[Level]:
    """Return a tree's members by their distance from the root, the nearest first."""
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


def _path_times(tree: Sequence[Level], seconds: Floats, chunk_s: Floats, members: int) -> tuple[Floats, Floats]:
    """Return for each member the seconds of its path to or from the root, and the slowest chunk time on that path."""
    total, slowest = np.zeros(members), np.zeros(members)
    for children, parents, edges in tree:
        total[children] = total[parents] + seconds[edges]
        slowest[children] = np.maximum(slowest[parents], chunk_s[edges])
    return total, slowest
