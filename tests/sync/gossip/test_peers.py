"""The other decentralized protocols under the same simulated time: what each conserves, and where each leads."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from testbed.planning.graphs import Graph, GraphError, complete, ring, torus, uniform
from testbed.schemes.adpsgd import ActiveMember, HalfDifference, PassiveMember
from testbed.schemes.fedasync import AsyncMember, AsyncServer, GivenModel, TrainedModel
from testbed.schemes.netmax import NetMaxMember, pull_probabilities
from testbed.schemes.prague import GeneratingMember, GroupGenerator, PragueMember
from testbed.schemes.sgp import MassShare, PushSumMember
from testbed.sync.gossip.effects import Participant, TrainingMember
from tests.schemes.hop.hops import neighbours
from tests.sync.gossip.quadratic import Quadratics
from tests.sync.gossip.simulation import Conditions, Simulation, Watcher

pytestmark = pytest.mark.pure

MEMBERS = tuple(f"w{index}" for index in range(8))
#: Directed, and some hear from two while others hear from one: plain averaging would favour some.
UNEVEN = Graph(tuple("abcd"), frozenset({("a", "b"), ("b", "c"), ("c", "d"), ("d", "a"), ("a", "c"), ("b", "d")}))
SEEDS = st.integers(0, 2**32)


def rough(seed: int, problem: Quadratics | None = None) -> Conditions:
    """Return conditions with steps of 1 to 6 units, delays up to 3, and messages that overtake each other."""
    random = Random(seed)
    conditions = Conditions(
        step_time=lambda member, iteration: random.choice((1.0, 1.0, 6.0)),
        delay=lambda sender, receiver: random.uniform(0, 3),
        random=random,
        in_order=False,
    )
    if problem:
        conditions.change = problem.change
    return conditions


def push_sum(problem: Quadratics, iterations: int) -> dict[str, Participant]:
    weights = uniform(UNEVEN)
    return {
        name: PushSumMember(neighbours(UNEVEN, name, weights), problem.start[name], iterations)
        for name in UNEVEN.members
    }


def ad_psgd(problem: Quadratics, iterations: int) -> dict[str, Participant]:
    graph = ring(MEMBERS)
    active, passive = graph.sides()
    members: dict[str, Participant] = {name: PassiveMember(name, problem.start[name], iterations) for name in passive}
    for name in active:
        members[name] = ActiveMember(name, graph.targets(name), problem.start[name], iterations, Random(name))
    return members


def prague(problem: Quadratics, iterations: int) -> dict[str, Participant]:
    first, *others = MEMBERS
    members: dict[str, Participant] = {
        name: PragueMember(name, first, problem.start[name], iterations, len(MEMBERS)) for name in others
    }
    groups = GroupGenerator(MEMBERS, 3, Random(1))
    return {**members, first: GeneratingMember(first, groups, problem.start[first], iterations, len(MEMBERS))}


ALL = complete(MEMBERS)


def net_max(problem: Quadratics, iterations: int, graph: Graph = ALL) -> dict[str, Participant]:
    clock, most = count(), max(len(graph.targets(name)) for name in graph.members)
    return {
        name: NetMaxMember(
            name, graph.targets(name), most, problem.start[name], iterations, Random(name), lambda: float(next(clock))
        )
        for name in graph.members
    }


def fed_async(problem: Quadratics, iterations: int) -> dict[str, Participant]:
    start = problem.start[MEMBERS[0]]
    members: dict[str, Participant] = {
        name: AsyncMember(name, MEMBERS[0], start, iterations, 2) for name in MEMBERS[1:]
    }
    return {**members, MEMBERS[0]: AsyncServer(MEMBERS[0], start, iterations, 2)}


@pytest.mark.parametrize("seed", range(3))
def test_members_of_netmax_count_alike_however_many_peers_they_have(seed: int) -> None:
    hub, *others = MEMBERS
    problem = Quadratics(MEMBERS, Random(seed))
    parties = net_max(problem, 400, Graph.undirected(MEMBERS, [(hub, other) for other in others]))
    Simulation(parties, rough(3, problem)).run()
    apart = max(problem.distance(start) for start in problem.start.values())
    mean = torch.stack([*models(parties).values()]).mean(0)
    assert problem.distance(mean) < 0.04 * apart


PROTOCOLS = {"push-sum": push_sum, "AD-PSGD": ad_psgd, "Prague": prague, "NetMax": net_max, "FedAsync": fed_async}


def models(parties: Mapping[str, Participant]) -> dict[str, Tensor]:
    return {name: party.parameters for name, party in parties.items() if isinstance(party, TrainingMember)}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_come_near_the_common_optimum(protocol: str) -> None:
    problem = Quadratics(UNEVEN.members if protocol == "push-sum" else MEMBERS, Random(1))
    parties = PROTOCOLS[protocol](problem, 150)
    Simulation(parties, rough(3, problem)).run()
    apart = max(problem.distance(start) for start in problem.start.values())
    assert max(problem.distance(model) for model in models(parties).values()) < 0.15 * apart


@pytest.mark.parametrize("protocol", PROTOCOLS)
@settings(max_examples=10)
@given(seed=SEEDS)
def test_everyone_ends_whatever_the_delays(protocol: str, seed: int) -> None:
    problem = Quadratics(UNEVEN.members if protocol == "push-sum" else MEMBERS, Random(1))
    parties = PROTOCOLS[protocol](problem, 10)
    simulation = Simulation(parties, rough(seed))
    simulation.run()
    assert simulation.ended.keys() == parties.keys()


class MassOfShares(Watcher):
    """Numerators and masses, held and on their way, sum to what they were at the start."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._before = self._sum()

    def settled(self, member: str) -> None:
        numerator, mass = self._sum()
        assert mass == pytest.approx(len(UNEVEN.members), rel=1e-9)
        assert torch.allclose(numerator, self._before[0], atol=1e-4)

    def _sum(self) -> tuple[Tensor, float]:
        held = [party.held for party in self._simulation.members.values() if isinstance(party, PushSumMember)]
        shares = [share for pair in self._simulation.flying.values() for share in pair if isinstance(share, MassShare)]
        numerators = [numerator for numerator, _ in held] + [share.numerator for share in shares]
        return torch.stack(numerators).sum(0), sum(mass for _, mass in held) + sum(share.mass for share in shares)


@settings(max_examples=10)
@given(SEEDS)
def test_push_sum_conserves_mass_at_every_step_and_agrees_on_the_plain_mean(seed: int) -> None:
    problem = Quadratics(UNEVEN.members, Random(seed))
    parties = push_sum(problem, 25)
    simulation = Simulation(parties, rough(seed))
    simulation.watch(MassOfShares(simulation))
    simulation.run()
    mean = torch.stack(list(problem.start.values())).mean(0)
    for model in models(parties).values():
        assert torch.allclose(model, mean, atol=1e-3)


class SumOfModels(Watcher):
    """Models, less what active members have yet to take away, sum to what they did at the start."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._before = self._sum()

    def settled(self, member: str) -> None:
        assert torch.allclose(self._sum(), self._before, atol=1e-4)

    def _sum(self) -> Tensor:
        flying = [
            moved.half
            for pair in self._simulation.flying.values()
            for moved in pair
            if isinstance(moved, HalfDifference)
        ]
        return torch.stack([*models(self._simulation.members).values(), *(-half for half in flying)]).sum(0)


@settings(max_examples=10)
@given(SEEDS)
def test_ad_psgd_averages_atomically(seed: int) -> None:
    parties = ad_psgd(Quadratics(MEMBERS, Random(seed)), 20)
    simulation = Simulation(parties, rough(seed))
    simulation.watch(SumOfModels(simulation))
    simulation.run()


def test_a_late_model_counts_less() -> None:
    """An update of version 0, after three more versions, counts 0.6 times 4 to the power of -0.5."""
    server = AsyncServer("a", torch.zeros(1), 1, 1)
    for _ in range(3):
        server.receive("b", TrainedModel(0, torch.zeros(1)))
    (answer,) = server.receive("c", TrainedModel(0, torch.ones(1)))
    assert isinstance(answer.message, GivenModel)
    assert (answer.to, answer.message.version, answer.message.parameters.item()) == ("c", 4, pytest.approx(0.3))


def test_sides_have_no_edge_inside_and_an_odd_circle_has_none() -> None:
    graph = torus(tuple(f"w{index}" for index in range(16)))
    active, passive = graph.sides()
    assert len(active) == len(passive) == 8
    assert all((u in active) != (v in active) for u, v in graph.edges)
    with pytest.raises(GraphError) as caught:
        ring(tuple("abc")).sides()
    assert caught.value.rule == "odd-cycle"


@given(SEEDS, st.integers(2, 5))
def test_groups_come_to_all_their_members_in_one_order(seed: int, size: int) -> None:
    """Otherwise two members could wait for each other, each in a group that the other has yet to do."""
    random = Random(seed)
    generator = GroupGenerator(MEMBERS, size, random)
    given_to = {member: [] for member in MEMBERS}
    for _ in range(60):
        member = random.choice(MEMBERS)
        given_to[member].append(generator.next_group(member))
    for member in MEMBERS:
        given_to[member] += generator.leave(member)
    groups = {group.number: group for taken in given_to.values() for group in taken}
    for member, taken in given_to.items():
        numbers = [group.number for group in taken]
        assert numbers == sorted(number for number, group in groups.items() if member in group.members)
    assert all(len(set(group.members)) == size for group in groups.values())


def test_pulls_favour_fast_peers_and_forget_none() -> None:
    odds = pull_probabilities({"near": 0.1, "far": 10.0}, floor=0.1)
    assert odds["near"] > 0.85 and odds["far"] > 0.1
    assert sum(odds.values()) == pytest.approx(1)
