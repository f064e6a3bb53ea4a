"""Hop's members over a graph, and the invariants of every step."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import torch
from torch import Tensor

from testbed.planning.gaps import GapMonitor, gap_bounds
from testbed.planning.graphs import Graph, Weights, uniform
from testbed.schemes.hop.member import HopMember, Tokens
from testbed.schemes.hop.reception import HopRules
from testbed.sync.gossip.neighbours import Neighbours
from tests.sync.gossip.quadratic import Quadratics
from tests.sync.gossip.simulation import Conditions, Simulation, Watcher


def neighbours(graph: Graph, member: str, weights: Weights) -> Neighbours:
    return Neighbours(member, graph.sources(member), graph.targets(member), weights[member])


def hop_members(
    graph: Graph,
    rules: HopRules,
    iterations: int,
    start: Mapping[str, Tensor] | None = None,
    weights: Weights | None = None,
    kind: type[HopMember] = HopMember,
) -> dict[str, HopMember]:
    weights = weights or uniform(graph)
    start = start or dict.fromkeys(graph.members, torch.zeros(1))
    return {name: kind(neighbours(graph, name, weights), rules, start[name], iterations) for name in graph.members}


def bounds_of(graph: Graph, rules: HopRules) -> Mapping[tuple[str, str], float]:
    return gap_bounds(
        graph,
        max_ig=rules.max_ig,
        backup=rules.backup,
        staleness=rules.staleness,
        notify_ack=rules.notify_ack,
    )


def monitor_of(graph: Graph, rules: HopRules) -> GapMonitor:
    return GapMonitor(graph.members, bounds_of(graph, rules))


def irregular(random: Random, problem: Quadratics) -> Conditions:
    """Return conditions with steps of 1 or 6 units, delays up to 3, and messages that overtake each other."""
    return Conditions(
        step_time=lambda member, iteration: random.choice((1.0, 6.0)),
        delay=lambda sender, receiver: random.uniform(0, 3),
        change=problem.change,
        in_order=False,
    )


class Invariants(Watcher):
    """Raises AssertionError at the first step at which a bound, or the number of tokens in a queue, is violated."""

    def __init__(self, graph: Graph, rules: HopRules) -> None:
        self.monitor = monitor_of(graph, rules)
        self.leaps = 0
        self._graph = graph
        self._max_ig = rules.max_ig
        self._simulation: Simulation | None = None

    def follow(self, simulation: Simulation) -> None:
        self._simulation = simulation
        simulation.watch(self)

    def advanced(self, member: str, iteration: int) -> None:
        self.leaps += iteration > self.monitor.iterations[member] + 1
        breaches = self.monitor.advance(member, iteration)
        assert not breaches, "; ".join(map(str, breaches))

    def settled(self, member: str) -> None:
        if self._max_ig is None:
            return
        for target in self._graph.targets(member):
            self._count_tokens(target, member)
        for source in self._graph.sources(member):
            self._count_tokens(member, source)

    def _count_tokens(self, giver: str, taker: str) -> None:
        assert self._simulation is not None and self._max_ig is not None
        one, other = self._simulation.members[taker], self._simulation.members[giver]
        assert isinstance(one, HopMember) and isinstance(other, HopMember) and one.credits
        flying = self._simulation.flying[giver, taker]
        tokens = one.credits.held(giver) + sum(m.count for m in flying if isinstance(m, Tokens))
        # The first iteration takes no token: a taker that has not begun it has what it will have then.
        ahead = other.iteration - max(one.iteration, 0)
        assert tokens == self._max_ig + ahead, f"TokenQ({giver} -> {taker}): {tokens}, giver {ahead} ahead"


def run_hop(
    graph: Graph, members: Mapping[str, HopMember], rules: HopRules, conditions: Conditions
) -> tuple[Simulation, Invariants]:
    """Run the members to the end under their invariants."""
    simulation = Simulation(members, conditions)
    invariants = Invariants(graph, rules)
    invariants.follow(simulation)
    simulation.run()
    return simulation, invariants
