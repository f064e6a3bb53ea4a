"""Swaps of the graph while members train, and members that join, under simulated time."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest
import torch
from torch import Tensor

from testbed.planning.graphs import complete, double_ring, metropolis, ring, uniform
from testbed.schemes.hop.member import HopMember
from testbed.schemes.hop.neighbourhood import Neighbourhood
from testbed.schemes.hop.reception import HopRules
from tests.schemes.hop.hops import hop_members, irregular, neighbours
from tests.schemes.hop.swapper import Era, Swapper, run_swaps
from tests.sync.gossip.quadratic import Quadratics
from tests.sync.gossip.simulation import Simulation

pytestmark = pytest.mark.pure

CASES = 20


def test_bounds_and_tokens_outlast_swaps_and_nobody_waits_for_ever() -> None:
    swaps = given_up = came = died = 0
    for seed in range(CASES):
        swapper = run_swaps(seed)
        swaps += len(swapper.eras) - 1
        given_up += swapper.given_up
        came += len(swapper.eras[-1].graph.members) - len(swapper.eras[0].graph.members)
        died += len(swapper.died)
    assert swaps > CASES and came > CASES / 3 and died > CASES / 3 and given_up


def expected(problem: Quadratics, eras: list[Era], iterations: int) -> Mapping[str, Tensor]:
    """Return the parameters after averaging with the matrix of the graph in force in each iteration."""
    now = dict(problem.start)
    for iteration in range(iterations):
        era = next(era for era in reversed(eras) if era.first <= iteration)
        weights = uniform(era.graph)
        for late in set(era.graph.members) - now.keys():
            sources = era.graph.sources(late)
            now[late] = torch.stack([now[source] for source in sources]).mean(0)
        now = {
            member: torch.stack([weight * now[other] for other, weight in weights[member].items()]).sum(0)
            + problem.change(member, iteration, now[member])
            for member in era.graph.members
        }
    return now


@pytest.mark.parametrize("rules", [HopRules(), HopRules(max_ig=2), HopRules(notify_ack=True, parallel=True)])
@pytest.mark.parametrize("late", [(), ("e",)])
def test_averages_are_those_of_the_graph_in_force(rules: HopRules, late: tuple[str, ...]) -> None:
    members = tuple("abcd")
    graphs = [ring(members), complete((*members, *late)), ring((*late, *members))]
    problem = Quadratics((*members, *late), Random(1))
    problem.start = {name: problem.start[name] for name in members}
    parties = hop_members(graphs[0], rules, 60, problem.start, uniform(graphs[0]))
    simulation = Simulation(parties, irregular(Random(3), problem))
    swapper = Swapper(simulation, rules, graphs, Random(5), 60, lambda: 1.0)
    simulation.run()
    assert len(swapper.eras) == 3
    for name, parameters in expected(problem, swapper.eras, 60).items():
        assert torch.allclose(swapper.member(name).parameters, parameters, atol=1e-5)


def test_neighbours_change_in_no_iteration_that_was_not_promised() -> None:
    graph = double_ring(tuple("abcdefgh"))
    given = neighbours(graph, "a", metropolis(graph))
    neighbourhood = Neighbourhood(given)
    with pytest.raises(ValueError):
        neighbourhood.commit(4, given)
    neighbourhood.prepare(5)
    assert neighbourhood.open(4) and not neighbourhood.open(5)
    with pytest.raises(ValueError, match="iteration 4"):
        neighbourhood.commit(4, given)
    neighbourhood.commit(7, given)
    assert neighbourhood.open(9) and neighbourhood.leap_end(9) == 6
    with pytest.raises(ValueError):
        neighbourhood.prepare(9)


def test_too_few_neighbours_are_refused() -> None:
    graph = complete(tuple("abcd"))
    member: HopMember = hop_members(graph, HopRules(max_ig=3, backup=3), 10)["a"]
    member.promise(2)
    with pytest.raises(ValueError, match="backup 3"):
        member.commit(3, neighbours(ring(tuple("abcd")), "a", uniform(ring(tuple("abcd")))))
