"""Hop under simulated time: random cases, faults that make them fail, and the result of averaging."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.planning.graphs import Graph, Weights, double_ring, exponential, metropolis, ring, uniform
from testbed.schemes.hop.member import HopMember, HopUpdate, Skipped
from testbed.schemes.hop.reception import HopRules
from testbed.sync.gossip.effects import Send, Steps
from tests.schemes.hop.campaign import run_cases
from tests.schemes.hop.cases import Case
from tests.schemes.hop.figures import random_slowdown, stragglers
from tests.schemes.hop.hops import hop_members, irregular, run_hop
from tests.sync.gossip.quadratic import Quadratics
from tests.sync.gossip.simulation import Conditions, Deadlock, Simulation

pytestmark = pytest.mark.pure

MEMBERS = tuple(f"w{index}" for index in range(16))
#: A one-way circle with a shortcut: neither symmetric nor regular.
DIRECTED = Graph(tuple("abcd"), frozenset({("a", "b"), ("b", "c"), ("c", "d"), ("d", "a"), ("a", "c")}))


def test_every_bound_holds_and_every_finite_one_is_attained() -> None:
    assert run_cases(range(60)).missing() == []


@settings(max_examples=30)
@given(st.integers(10_000, 2**32))
def test_no_case_deadlocks_or_breaks_a_bound(seed: int) -> None:
    Case.of(seed).run()


def test_a_seed_replays_its_case() -> None:
    first, again = Case.of(7), Case.of(7)
    assert first.rules == again.rules and first.graph == again.graph
    assert first.run().monitor.widest == again.run().monitor.widest


class Mute(HopMember):
    """A member that leaps without announcing the skipped iterations."""

    def _renew(self, left: int) -> Steps[None]:
        for effect in super()._renew(left):
            if not (isinstance(effect, Send) and isinstance(effect.message, Skipped)):
                yield effect


class Hoarder(HopMember):
    """A member that hands out the tokens of a leap only after it has renewed its parameters."""

    def _enter(self, iteration: int) -> Steps[None]:
        leaps = iteration > self.iteration + 1
        effects = list(super()._enter(iteration))
        self._kept = [effect for effect in effects if leaps and isinstance(effect, Send)]
        yield from (effect for effect in effects if effect not in self._kept)

    def _renew(self, left: int) -> Steps[None]:
        yield from super()._renew(left)
        yield from self._kept


@pytest.mark.parametrize("kind", [Mute, Hoarder])
def test_a_leap_in_the_wrong_order_deadlocks_and_the_cases_find_it(kind: type[HopMember]) -> None:
    def run(seed: int, kind: type[HopMember]) -> None:
        case = Case.of(seed)
        members = hop_members(case.graph, case.rules, case.iterations, kind=kind)
        Simulation(members, case.conditions).run()

    found = 0
    for seed in range(300):
        if Case.of(seed).mode == "backup + tokens + leaps":
            try:
                run(seed, kind)
            except Deadlock:
                run(seed, HopMember)
                found += 1
    assert found


def test_a_case_that_fails_says_how_to_replay_it() -> None:
    with pytest.raises(AssertionError, match=r"(?s)seed 53, backup.*Deadlock.*campaign --seed 53"):
        Case.of(53).run(Mute)


@pytest.mark.parametrize(
    ("graph", "weigh"), [(ring(MEMBERS), metropolis), (exponential(MEMBERS), uniform), (DIRECTED, uniform)]
)
@pytest.mark.parametrize("rules", [HopRules(), HopRules(max_ig=2), HopRules(notify_ack=True, parallel=True)])
def test_modes_that_wait_for_all_average_as_the_matrix_does(
    graph: Graph, weigh: Callable[[Graph], Weights], rules: HopRules
) -> None:
    """x(k+1) = W x(k) - rate x gradient, whatever the delays: with Metropolis weights it is D-PSGD."""
    problem, weights = Quadratics(graph.members, Random(1)), weigh(graph)
    expected = dict(problem.start)
    for iteration in range(20):
        expected = {
            member: sum((weight * expected[other] for other, weight in weights[member].items()), torch.zeros(3))
            + problem.change(member, iteration, expected[member])
            for member in graph.members
        }
    members = hop_members(graph, rules, 20, problem.start, weights)
    run_hop(graph, members, rules, irregular(Random(2), problem))
    for name, member in members.items():
        assert torch.allclose(member.parameters, expected[name], atol=1e-5)


@pytest.mark.parametrize(
    "rules",
    [
        HopRules(),
        HopRules(max_ig=4, backup=1),
        HopRules(max_ig=4, staleness=2),
        HopRules(max_ig=4, backup=1, max_jump=4),
        HopRules(max_ig=4, staleness=3, max_jump=4, quantile=0.5),
    ],
)
def test_every_mode_comes_near_the_common_optimum(rules: HopRules) -> None:
    graph = double_ring(MEMBERS[:8])
    problem = Quadratics(graph.members, Random(1))
    members = hop_members(graph, rules, 150, problem.start, metropolis(graph))
    run_hop(graph, members, rules, Conditions(random_slowdown(0), change=problem.change))
    apart = max(problem.distance(parameters) for parameters in problem.start.values())
    assert max(problem.distance(member.parameters) for member in members.values()) < 0.15 * apart


def test_a_send_that_its_receiver_would_drop_is_suppressed() -> None:
    """A straggler without leaps is max_ig behind; its neighbours do without it, and can't use its updates."""
    graph = ring(MEMBERS[:6])
    rules = HopRules(max_ig=3, backup=1)
    members = hop_members(graph, rules, 30)
    simulation = Simulation(members, Conditions(stragglers("w0")))
    simulation.run()
    updates = [pair for pair, message in simulation.log if isinstance(message, HopUpdate)]
    # Its first 4 iterations go out while its neighbours are no more than max_ig ahead; after that they always are.
    assert updates.count(("w3", "w2")) == 30
    assert updates.count(("w0", "w1")) < 5


def test_an_update_that_waits_for_a_slow_path_is_left_out_when_a_newer_one_makes_it_useless() -> None:
    member: HopMember = hop_members(ring(MEMBERS[:6]), HopRules(max_ig=5, staleness=2), 10)["w0"]
    update = HopUpdate(3, torch.zeros(1))
    assert member.stale("w1", update, [HopUpdate(4, torch.zeros(1))])
    assert not member.stale("w1", update, [])


def test_an_update_that_waits_for_a_slow_path_is_left_out_when_its_receiver_has_gone_on() -> None:
    member: HopMember = hop_members(ring(MEMBERS[:6]), HopRules(max_ig=5, backup=1), 10)["w0"]
    member.iteration = 4
    assert member.credits
    member.credits.put("w1", 2)  # 6 of 5 are w1's: it is one ahead, in iteration 5
    assert member.stale("w1", HopUpdate(4, torch.zeros(1)), [])
    assert not member.stale("w5", HopUpdate(4, torch.zeros(1)), [])
