"""How members come to better plans as their network changes: a coordinator and its members on simulated time.

A seed draws how long messages and work take, and the order in which members report.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.controller.allreduce.coordinator import AllReduceCoordinator
from testbed.controller.model.spec import Elasticity
from testbed.plan import Plan
from testbed.planning import CostModel, View, make_policy
from testbed.telemetry.store import read_records
from tests.controller.fleet import PAUSE_S
from tests.controller.runs import mesh, spec_of
from tests.controller.simulated import SimulatedFleet, simulated
from tests.planning.networks import sites, view_of

SEEDS = (0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2)))

pytestmark = [pytest.mark.pure, pytest.mark.parametrize("seed", SEEDS)]

policies = pytest.mark.parametrize("policy", ["star", "mst", "hierarchical"])


def used(plan: Plan) -> list[str]:
    """The links between sites that a plan uses, as `mesh` names them."""
    return sorted({u[0] + "_" + v[0] for u, v, _ in plan.edges() if u[0] < v[0]})


def in_force(fleet: SimulatedFleet) -> Plan:
    return fleet.group.plans.plan


def test_every_swap_can_be_decided_again_from_what_was_stored(tmp_path: Path, seed: int) -> None:
    view = mesh()
    with simulated(spec_of(view, policy="packing"), tmp_path, view, seed) as fleet:
        fleet.run(5)
        for slow in ("a_b", "a_c"):
            fleet.network = mesh(**{slow: 4})
            fleet.run(6)
        assert len(fleet.swaps) >= 2
    out = tmp_path / "out"
    again = 0
    for decision in read_records(out / "decisions.jsonl"):
        if decision["adopted"] and decision["choice"] is not None and decision["last"] is not None:
            view = View.from_json(json.loads((out / decision["view"]).read_text()))
            last, adopted = (
                Plan.from_json(json.loads((out / f"plans/{decision[of]:04d}.json").read_text()))
                for of in ("last", "epoch")
            )
            made = make_policy(decision["policy"], decision["options"]).proposals(view, last)[decision["choice"]]
            assert made.with_epoch(adopted.epoch) == adopted
            again += 1
    assert again >= 1


@policies
def test_a_drop_of_a_link_in_use_makes_it_swap_within_three_rounds(tmp_path: Path, policy: str, seed: int) -> None:
    view = mesh()
    with simulated(spec_of(view, policy=policy), tmp_path, view, seed) as fleet:
        fleet.run(8)
        assert fleet.swaps == []
        dropped = used(in_force(fleet))[0]
        fleet.network = mesh(**{dropped: 3})
        fleet.run(6)
        swap = fleet.swaps[0]
        assert swap.active_round is not None and swap.active_round <= 8 + 3
        assert dropped not in used(in_force(fleet))
        assert swap.lost_updates == 0 == swap.duplicated_updates
        assert swap.pause_ms is not None  # of a slower network: the rounds before were of the old one
        swaps = len(fleet.swaps)
        fleet.run(40)
        assert len(fleet.swaps) == swaps <= 2


@pytest.mark.parametrize("sizes", [(1,), (1, 3), (1, 2, 3, 2, 2, 1, 3)])
def test_sums_of_other_sizes_than_planned_for_swap_too(tmp_path: Path, sizes: tuple[int, ...], seed: int) -> None:
    view = mesh()
    planned_for = replace(view, model_bytes=32 * view.model_bytes)
    with simulated(spec_of(planned_for, measured_bytes=True), tmp_path, view, seed) as fleet:

        def train(network: View, steps: int) -> None:
            for _ in range(steps):
                for size in sizes:
                    fleet.network = replace(network, model_bytes=size * view.model_bytes)
                    fleet.one_round()

        train(view, 16)
        mean = view.model_bytes * sum(sizes) / len(sizes)
        assert fleet.maker.view(fleet.group.clocks.unix()).model_bytes == pytest.approx(mean, rel=0.25)
        assert fleet.swaps == []
        dropped = used(in_force(fleet))[0]
        train(mesh(**{dropped: 4}), 16)
        assert dropped not in used(in_force(fleet))
        assert 1 <= len(fleet.swaps) <= 2


def test_a_drop_is_seen_and_another_plan_held_before_the_round_that_it_comes_in_is_over(
    tmp_path: Path, seed: int
) -> None:
    rounds, lasts_s = 8, 8.0
    view = mesh()
    with simulated(spec_of(view), tmp_path, view, seed) as fleet:
        assert lasts_s > 2 * (CostModel(view).predict(in_force(fleet)).seconds + PAUSE_S)
        fleet.run(rounds)
        assert fleet.swaps == []
        dropped = used(in_force(fleet))[0]
        fleet.network = mesh(**{dropped: 8})
        fleet.linger(lasts_s)
        (swap,) = fleet.swaps  # before any member has reported the round
        assert swap.held_s is not None
        fleet.run(2)
        assert swap.active_round == rounds
        assert dropped not in used(in_force(fleet))
    assert len(list(read_records(tmp_path / "out/estimates.jsonl"))) == rounds + 1 + 2


@pytest.mark.parametrize(("slower", "elastic", "restarts"), [(25, True, True), (3, True, False), (25, False, False)])
def test_a_round_that_would_take_long_by_the_old_plan_starts_again_where_members_may_go(
    tmp_path: Path, seed: int, slower: float, elastic: bool, restarts: bool
) -> None:
    rounds, view = 8, mesh()
    with simulated(spec_of(view, elastic=Elasticity(quorum=3) if elastic else None), tmp_path, view, seed) as fleet:
        fleet.run(rounds)
        before, dropped = in_force(fleet), used(in_force(fleet))[0]
        fleet.network = mesh(**{dropped: slower})
        for _ in range(4):
            fleet.linger(1.0)
        (swap,) = fleet.swaps  # before any member has reported the round
        assert swap.held_s is not None
        assert in_force(fleet) == (swap.plan if restarts else before)
        fleet.run(2)
        assert in_force(fleet) == swap.plan and dropped not in used(swap.plan)
        assert swap.active_round == rounds and swap.lost_updates == 0 == swap.duplicated_updates
        assert fleet.swaps == [swap] and swap.pause_ms is not None
        assert isinstance(fleet.coordinator, AllReduceCoordinator)
        costs_s = fleet.coordinator.planner._track.performance(fleet.group.clocks.unix()).swaps_s
        assert costs_s == (() if restarts else (swap.pause_ms / 1e3,)), "the slow round is not what the swap costs"


def test_a_member_that_says_nothing_of_a_slow_round_is_waited_for(tmp_path: Path, seed: int) -> None:
    view = mesh()
    with simulated(spec_of(view), tmp_path, view, seed) as fleet:
        fleet.run(8)
        fleet.network = mesh(a_b=8, a_c=8)
        fleet.linger(10.0, silent={"b-w0"})
        assert fleet.swaps == []
        assert len(list(read_records(tmp_path / "out/estimates.jsonl"))) == 8


@policies
def test_a_constant_network_never_makes_it_swap(tmp_path: Path, policy: str, seed: int) -> None:
    small = replace(mesh(), model_bytes=100_000)  # transfers that slow start makes look slow
    with simulated(spec_of(small, policy=policy), tmp_path, small, seed) as fleet:
        fleet.run(60)
        assert fleet.swaps == []
    decisions = list(read_records(tmp_path / "out/decisions.jsonl"))
    assert len(decisions) > 5 and not any(decision["adopted"] for decision in decisions[1:])


def test_a_controller_that_holds_looks_for_no_other_plan_until_the_network_is_another_one(
    tmp_path: Path, seed: int
) -> None:
    view = mesh()
    with simulated(spec_of(view, hold=True), tmp_path, view, seed) as fleet:
        slow = used(in_force(fleet))[0]
        fleet.network = mesh(**{slow: 5})
        fleet.run(10)
        assert fleet.swaps == [] and fleet.probed == set()
        assert len(list(read_records(tmp_path / "out/decisions.jsonl"))) == 1  # the first plan
        fleet.change_network(fleet.network)
        fleet.run(3)
        assert fleet.swaps == []  # nothing saves all of a round
        a, b = slow.split("_")
        links = {name: link for name, link in view.links.items() if name not in (f"{a}->{b}", f"{b}->{a}")}
        routes = {pair: route for pair, route in view.routes.items() if links.keys() >= set(route)}
        fleet.change_network(replace(view, links=links, routes=routes))
        fleet.run(3)
        assert [swap.reason.split(":")[0] for swap in fleet.swaps] == ["network"]


def test_a_link_that_recovers_while_in_use_is_believed_again(tmp_path: Path, seed: int) -> None:
    line = sites(("a", "b", 40), ("b", "c", 40), delay=0.02)  # no way around: the plan can't change
    slow = sites(("a", "b", 40 / 3), ("b", "c", 40), delay=0.02)
    view = view_of(line, {}, model_bytes=4_000_000, knowledge="measured")
    with simulated(spec_of(view), tmp_path, view, seed) as fleet:
        fleet.run(6)
        fleet.network = view_of(slow, {}, model_bytes=4_000_000, knowledge="measured")
        fleet.run(6)
        believed = fleet.maker.knowledge.view(0.0).links
        assert min(believed["a->b"].rate_bps, believed["b->a"].rate_bps) < 20e6
        assert min(believed["b->c"].rate_bps, believed["c->b"].rate_bps) > 36e6
        fleet.network = view
        fleet.run(8)
        believed = fleet.maker.knowledge.view(0.0).links
        rates = [believed[name].rate_bps for name in ("a->b", "b->a")]
        assert rates == pytest.approx([40e6, 40e6], rel=0.1)
