"""Random cases of Hop: a digraph, rules, speeds, delays and an interleaving, all from one seed."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from random import Random

from testbed.planning.graphs import Graph, double_ring, exponential, ring, ring_based
from testbed.schemes.hop.member import HopMember
from testbed.schemes.hop.reception import HopRules
from tests.schemes.hop.hops import Invariants, hop_members, run_hop
from tests.sync.gossip.simulation import Conditions

#: The rows of the table of bounds, and those with leaps, whose bounds are those of the row they leap in.
MODES = (
    "standard",
    "notify-ack",
    "standard + tokens",
    "backup",
    "backup + tokens",
    "backup + tokens + leaps",
    "staleness",
    "staleness + tokens",
    "staleness + tokens + leaps",
)


@dataclass(frozen=True)
class Case:
    """A case, with everything that its seed determines."""

    seed: int
    mode: str
    graph: Graph
    rules: HopRules
    iterations: int
    conditions: Conditions

    @classmethod
    def of(cls, seed: int) -> Case:
        random = Random(seed)
        graph = _graph(random)
        mode = random.choice(MODES)
        rules = _rules(random, mode, graph)
        return cls(seed, mode, graph, rules, random.randint(4, 24), _conditions(random, graph))

    def run(self, kind: type[HopMember] = HopMember) -> Invariants:
        """Run the case, and return its invariants. Raises AssertionError, with the seed, where one does not hold."""
        members = hop_members(self.graph, self.rules, self.iterations, kind=kind)
        try:
            _, invariants = run_hop(self.graph, members, self.rules, self.conditions)
        except Exception as error:
            raise AssertionError(
                f"seed {self.seed}, {self.mode}, {self.rules}: {error!r}\n"
                f"replay: python -m tests.schemes.hop.campaign --seed {self.seed}"
            ) from error
        assert all(member.iteration == self.iterations for member in members.values())
        return invariants

    def attained(self, invariants: Invariants) -> set[str]:
        """Return the sides of finite bounds, `arrival` or `grant`, that some pair attained."""
        widest = invariants.monitor.widest
        found = set()
        for (i, j), gap in widest.items():
            arrival, grant = self._sides(i, j)
            if gap == arrival <= grant:
                found.add("arrival")
            if gap == grant < arrival:
                found.add("grant")
        return found

    def _sides(self, i: str, j: str) -> tuple[float, float]:
        hops, rules = self.graph.hops, self.rules
        arrival = inf if rules.backup else (1 + rules.staleness) * hops[j][i]
        grant = 2 if rules.notify_ack else rules.max_ig or inf
        return arrival, grant * hops[i][j]


def _graph(random: Random) -> Graph:
    n = random.randint(2, 16)
    members = tuple(f"w{index}" for index in range(n))
    families = [ring, exponential] + [ring_based] * (n % 2 == 0) + [double_ring] * (n % 4 == 0)
    if random.random() < 0.3:
        return random.choice(families)(members)
    order = random.sample(members, n)
    around = set(zip(order, order[1:] + order[:1], strict=True))
    density = random.choice((0.0, 0.05, 0.2, 0.6))
    others = {(u, v) for u in members for v in members if u != v and random.random() < density}
    return Graph(members, frozenset(around | others))


def _rules(random: Random, mode: str, graph: Graph) -> HopRules:
    fewest = min(len(graph.sources(member)) for member in graph.members)
    return HopRules(
        max_ig=random.randint(1, 5) if "tokens" in mode else None,
        backup=random.randint(1, min(fewest, 3)) if "backup" in mode else 0,
        staleness=random.randint(1, 4) if "staleness" in mode else 0,
        max_jump=random.randint(2, 6) if "leaps" in mode else 1,
        quantile=random.choice((0.0, 0.5, 0.75, 1.0)) if "leaps" in mode else 0.0,
        notify_ack=mode == "notify-ack",
        parallel=random.random() < 0.5,
    )


def _conditions(random: Random, graph: Graph) -> Conditions:
    """Draw whole numbers often, so that many events are due at once, and come in any order."""
    base = {member: random.choice((1, 1, 1, 2, 4, 50)) for member in graph.members}
    slowdown, probability = random.choice((1, 6, 30)), random.choice((0.0, 1 / 16, 0.3))
    latency = {edge: random.choice((0, 0, 1, 3, 20)) for edge in sorted(graph.edges)}
    jitter = random.choice((0, 0, 1, 10))
    draws = Random(random.random())

    def step_time(member: str, iteration: int) -> float:
        return base.get(member, 1) * (slowdown if draws.random() < probability else 1)

    def delay(sender: str, receiver: str) -> float:
        return latency.get((sender, receiver), 0) + draws.randint(0, jitter)

    starts = {member: random.choice((0, 0, 10)) for member in graph.members}
    return Conditions(step_time, delay, starts=starts, random=draws, in_order=random.random() < 0.5)
