"""Swaps of the graph and deaths under simulated time, as a controller handles them, with their invariants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from random import Random

import torch

from testbed.planning.gaps import GapMonitor
from testbed.planning.graphs import Graph, GraphError, uniform
from testbed.schemes.hop.member import HopMember, Tokens
from testbed.schemes.hop.reception import HopRules
from tests.schemes.hop.cases import Case
from tests.schemes.hop.hops import bounds_of, hop_members, monitor_of, neighbours
from tests.sync.gossip.simulation import Simulation, Watcher


@dataclass
class Era:
    """The iterations from `first` on during which `graph` is in force; its monitor counts from `first`."""

    first: int
    graph: Graph
    monitor: GapMonitor
    end: float = inf

    def clamp(self, iteration: int) -> int:
        return int(min(max(iteration, self.first), self.end)) - self.first


class Swapper(Watcher):
    """Swaps through `graphs`, one after the other. A member that was in no earlier graph joins with its first graph.

    Up to `deaths` times a member dies instead, and comes back by a swap to the same graph. The swapper also watches the
    members: iterations, clamped to those of one graph, keep its bounds, and each token queue has the tokens that follow
    from its ends' iterations.
    """

    def __init__(
        self,
        simulation: Simulation,
        rules: HopRules,
        graphs: list[Graph],
        random: Random,
        iterations: int,
        delay: Callable[[], float],
        deaths: int = 0,
    ) -> None:
        self.eras = [Era(0, graphs[0], monitor_of(graphs[0], rules))]
        self.given_up = 0
        self.died: list[str] = []
        self._deaths = deaths
        self._simulation = simulation
        self._rules = rules
        self._left = graphs[1:]
        self._random = random
        self._iterations = iterations
        self._delay = delay
        self._ends: dict[str, int] = {}
        self._heard: set[str] = set()
        simulation.watch(self)
        simulation.after(delay(), self._go_on)

    def member(self, name: str) -> HopMember:
        member = self._simulation.members[name]
        assert isinstance(member, HopMember)
        return member

    # -- the controller's part

    def _go_on(self) -> None:
        graph = self.eras[-1].graph
        mortal = [name for name in graph.members if _survives(graph, name)]
        if self._deaths and mortal and self._random.random() < 0.5:
            self._deaths -= 1
            self._kill(self._random.choice(mortal))
        else:
            self._ask_all()

    def _kill(self, dead: str) -> None:
        era = self.eras[-1]
        self.died.append(dead)
        self._left.insert(0, era.graph)
        self._ends, self._heard = {}, set()
        era.graph = era.graph.without(dead)
        era.monitor.remove(dead, bounds_of(era.graph, self._rules))
        self._simulation.kill(dead)
        for name in era.graph.members:
            self._simulation.after(self._delay(), lambda name=name: self._forget(name, dead))

    def _forget(self, name: str, dead: str) -> None:
        self._simulation.cut(name, dead)
        self.member(name).remove(dead)
        self._simulation.tell(name)
        self._simulation.after(self._delay(), lambda: self._ask(name))

    def _ask_all(self) -> None:
        if self._left:
            self._ends, self._heard = {}, set()
            for name in self.eras[-1].graph.members:
                self._simulation.after(self._delay(), lambda name=name: self._ask(name))

    def _ask(self, name: str) -> None:
        end = self.member(name).promise(self._random.randint(1, 4))
        self._simulation.after(self._delay(), lambda: self._promised(name, end))

    def _promised(self, name: str, end: int) -> None:
        self._ends[name] = end
        if len(self._ends) == len(self.eras[-1].graph.members):
            first, graph = max(self._ends.values()), self._left.pop(0)
            if first >= self._iterations or self._random.random() < 0.1:
                self._give_up()
            else:
                self._turn_all(first, graph)

    def _give_up(self) -> None:
        self.given_up += 1
        for name in self._ends:
            self._simulation.after(self._delay(), lambda name=name: self._release(name))
        self._left.clear()

    def _release(self, name: str) -> None:
        self.member(name).abort()
        self._simulation.tell(name)

    def _turn_all(self, first: int, graph: Graph) -> None:
        before = self.eras[-1]
        before.end = first
        self.eras.append(Era(first, graph, monitor_of(graph, self._rules)))
        for name in graph.members:
            tell = self._turn
            if name not in before.graph.members:
                place = neighbours(graph, name, uniform(graph))
                comes = HopMember(place, self._rules, torch.zeros(3), self._iterations, first)
                self._simulation.revive(name, comes)
                tell = self._simulation.begin
            self._simulation.after(self._delay(), lambda name=name, tell=tell: tell(name))

    def _turn(self, name: str) -> None:
        era = self.eras[-1]
        self._heard.add(name)
        sends = self.member(name).commit(era.first, neighbours(era.graph, name, uniform(era.graph)))
        self._simulation.tell(name, sends)

    # -- what must hold

    def advanced(self, member: str, iteration: int) -> None:
        for era in self.eras:
            if member in era.graph.members and era.clamp(iteration) > era.monitor.iterations[member]:
                breaches = era.monitor.advance(member, era.clamp(iteration))
                assert not breaches, f"from {era.first} on: " + "; ".join(map(str, breaches))
        newest = self.eras[-1]
        here = [self._simulation.members.get(name) for name in newest.graph.members]
        turned = all(isinstance(one, HopMember) and one.iteration >= newest.first for one in here)
        if turned and self._heard:
            self._heard = set()
            self._simulation.after(self._delay(), self._go_on)

    def settled(self, member: str) -> None:
        if self._rules.max_ig is None:
            return
        for taker, giver in self._era_of(member).graph.edges:
            if member in (taker, giver):
                self._count_tokens(giver, taker)

    def _era_of(self, member: str) -> Era:
        iteration = max(self.member(member).iteration, 0)
        return next(era for era in reversed(self.eras) if era.first <= iteration or era is self.eras[0])

    def _count_tokens(self, giver: str, taker: str) -> None:
        one, other = self.member(taker), self.member(giver)
        mine, its = self._era_of(taker), self._era_of(giver)
        if (taker, giver) not in mine.graph.edges or not one.credits or self._rules.max_ig is None:
            return
        if its is not mine and its.end == mine.first and giver not in self._heard:
            return  # it has yet to hear that it gives tokens to this one, or is itself to come
        dropped = its is not mine and its.first == mine.end and (taker, giver) not in its.graph.edges
        entered = its.first if dropped else other.iteration
        flying = self._simulation.flying[giver, taker]
        tokens = one.credits.held(giver) + sum(m.count for m in flying if isinstance(m, Tokens))
        expected = self._rules.max_ig + entered - max(one.iteration, 0)
        assert tokens == expected, f"TokenQ({giver} -> {taker}): {tokens}, not {expected}"


def _survives(graph: Graph, gone: str) -> bool:
    """Return True if a graph without one of its members has two members, and leads from each to each."""
    try:
        return len(graph.without(gone).members) > 1
    except GraphError:
        return False


def drawn(random: Random, members: tuple[str, ...], least: int) -> Graph:
    """Return a strongly connected digraph in which each member has at least `least` in-neighbours."""
    order = random.sample(members, len(members))
    edges = set(zip(order, order[1:] + order[:1], strict=True))
    for member in members:
        others = [other for other in members if other != member]
        edges |= {
            (other, member) for other in random.sample(others, min(random.randint(least, least + 1), len(others)))
        }
    return Graph(members, frozenset(edges))


def run_swaps(seed: int) -> Swapper:
    """Run a random case of Hop, whose graph is swapped up to three times for one with as many members or one more.

    Raises AssertionError, with the seed, where an invariant does not hold.
    """
    case, random = Case.of(seed), Random(f"{seed} swaps")
    least = max(case.rules.backup, 1)
    members, graphs = case.graph.members, [case.graph]
    for number in range(3):
        if random.random() < 0.5:
            members = (*members, f"late{number}")
        graphs.append(drawn(random, members, least))
    iterations = case.iterations + 30
    parties = hop_members(case.graph, case.rules, iterations, {name: torch.zeros(3) for name in case.graph.members})
    simulation = Simulation(parties, case.conditions)
    swapper = Swapper(
        simulation,
        case.rules,
        graphs,
        random,
        iterations,
        lambda: random.choice((0, 0, 1, 5, 40)),
        random.choice((0, 1, 2)),
    )
    try:
        simulation.run()
    except Exception as error:
        raise AssertionError(
            f"seed {seed}, {case.rules}, {len(swapper.eras) - 1} swaps: {error!r}\n"
            f"replay: python -m tests.schemes.hop.campaign --swaps --seed {seed}"
        ) from error
    for name in swapper.eras[-1].graph.members:
        assert swapper.member(name).iteration == iterations, name
    return swapper
