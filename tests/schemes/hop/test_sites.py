"""Hop between sites: a site's steps are those of one member, and tokens bound the gap between sites."""

from __future__ import annotations

from random import Random

import pytest
import torch

from testbed.planning.gaps import GapMonitor, gap_bounds
from testbed.planning.graphs import metropolis, ring
from testbed.schemes.hop.reception import HopRules
from testbed.schemes.hop.sites import SiteLeader, SiteWorker
from testbed.sync.errors import SyncError
from testbed.sync.gossip.effects import Participant
from testbed.sync.gossip.inbox import PeerCut
from tests.schemes.hop.hops import irregular, neighbours
from tests.sync.gossip.loopback import Gate, start
from tests.sync.gossip.quadratic import Quadratics
from tests.sync.gossip.simulation import Conditions, Simulation, Watcher
from tests.sync.gossip.test_sockets import of, run
from tests.waiting import until

pytestmark = pytest.mark.local

SITES = {f"s{site}-w0": (f"s{site}-w1", f"s{site}-w2") for site in range(4)}
EVERYBODY = tuple(name for leader, others in SITES.items() for name in (leader, *others))
GRAPH = ring(tuple(SITES))


def parties(rules: HopRules, iterations: int, problem: Quadratics) -> dict[str, Participant]:
    begin, weights = {leader: problem.start[leader] for leader in SITES}, metropolis(GRAPH)
    made: dict[str, Participant] = {}
    for leader, others in SITES.items():
        made[leader] = SiteLeader(neighbours(GRAPH, leader, weights), rules, begin[leader], iterations, others)
        made |= {name: SiteWorker(name, leader, begin[leader], iterations) for name in others}
    return made


def expected(problem: Quadratics, iterations: int) -> dict[str, torch.Tensor]:
    now = {leader: problem.start[leader] for leader in SITES}
    weights = metropolis(GRAPH)
    for k in range(iterations):
        steps = {
            leader: torch.stack([problem.change(name, k, now[leader]) for name in (leader, *others)]).mean(0)
            for leader, others in SITES.items()
        }
        now = {
            leader: sum((weight * now[other] for other, weight in weights[leader].items()), steps[leader])
            for leader in SITES
        }
    return now


@pytest.mark.parametrize("rules", [HopRules(), HopRules(max_ig=2, parallel=True)])
def test_a_sites_step_is_the_mean_of_its_members(rules: HopRules) -> None:
    problem = Quadratics(EVERYBODY, Random(1))
    made = parties(rules, 20, problem)
    Simulation(made, irregular(Random(2), problem)).run()
    for leader, parameters in expected(problem, 20).items():
        assert torch.allclose(made[leader].parameters, parameters, atol=1e-5)
        for name in SITES[leader]:
            assert torch.equal(made[name].parameters, made[leader].parameters)


def test_a_worker_waits_as_long_as_its_leader_may() -> None:
    """In one iteration for acknowledgements, its site's step, an update and a token, each up to the timeout."""
    leader, worker = "s0-w0", "s0-w1"
    made = parties(HopRules(), 1, Quadratics(EVERYBODY, Random(1)))
    assert made[worker].patience == 4 * made[leader].patience


class Gaps(Watcher):
    """Asserts that the leaders keep their bounds."""

    def __init__(self, rules: HopRules) -> None:
        bounds = gap_bounds(GRAPH, max_ig=rules.max_ig, backup=rules.backup)
        self.monitor = GapMonitor(GRAPH.members, bounds)

    def advanced(self, member: str, iteration: int) -> None:
        if member in SITES:
            assert not self.monitor.advance(member, iteration)


def test_tokens_bound_the_drift_between_sites_also_where_one_leaps() -> None:
    rules = HopRules(max_ig=3, backup=1, max_jump=4)
    problem = Quadratics(EVERYBODY, Random(1))
    made, gaps = parties(rules, 60, problem), Gaps(rules)
    slow = Conditions(step_time=lambda member, iteration: 4.0 if member == "s1-w2" else 1.0, change=problem.change)
    simulation = Simulation(made, slow, gaps)
    took = simulation.run()
    assert max(gaps.monitor.widest.values()) > 1
    assert took < 0.7 * 4 * 60  # the whole site leaps after the others, its worker being slow


def test_over_sockets_a_worker_that_dies_is_done_without_and_a_leader_is_not() -> None:
    problem = Quadratics(EVERYBODY, Random(1))
    made = parties(HopRules(max_ig=3, backup=1), 40, problem)
    partners = {leader: (*GRAPH.sources(leader), *others) for leader, others in SITES.items()}
    partners |= {name: (leader,) for leader, others in SITES.items() for name in others}
    gate = Gate(10)

    def enter(name: str, iteration: int) -> None:
        if name == "s2-w1":
            gate.enter(iteration)

    nodes = start(made, partners, 3, of(problem, enter), survives=True)
    until(lambda: 11 in nodes["s2-w1"].follow.entered)
    nodes["s2-w1"].kill()
    gate.open()
    nodes["s2-w1"].join()
    assert isinstance(nodes["s2-w1"].error, SyncError)
    for name, node in nodes.items():
        if name != "s2-w1":
            node.inbox.put(PeerCut("s2-w1"))
    del nodes["s2-w1"]
    run(nodes)
    assert torch.equal(made["s2-w2"].parameters, made["s2-w0"].parameters)
    with pytest.raises(ValueError, match="s0-w0"):
        made["s0-w1"].remove("s0-w0")
