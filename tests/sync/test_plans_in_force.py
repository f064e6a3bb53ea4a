"""Plans with more than trees: groups, keys, auxiliary routes, several connections, a fixed order of addition."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from testbed import sync
from testbed.plan import Plan, Route
from testbed.protocol import Held, PeerSample
from tests.sync.controller import Controller, job
from tests.sync.plans import chain, names, random_groups, random_plan, random_routes, star
from tests.sync.sessions import run_with
from tests.sync.test_session import check_exact, reducing, reducing_until, run, values
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.local


def reduced(session: sync.Session, rounds: int, elements: int) -> list[tuple[torch.Tensor, bool]]:
    done = []
    for k in range(rounds):
        result = session.allreduce(values(session.name, k, elements))
        session.report()
        done.append((result.tensor, result.whole))
    return done


@pytest.mark.parametrize("seed", range(4))
def test_groups_reduce_among_themselves_but_for_every_period(tmp_path: Path, seed: int) -> None:
    """Members of one group are slow, so that the others run ahead as far as they can."""
    draw = random.Random(seed)
    plan = random_groups(draw, random_plan(draw, names(6), 0, 1024))
    slow = set(plan.groups[-1].members)
    rounds, elements = 3 * plan.period, 2000

    def work(session: sync.Session) -> list[tuple[torch.Tensor, bool]]:
        done = []
        for k in range(rounds):
            if session.name in slow:
                time.sleep(0.01)
            result = session.allreduce(values(session.name, k, elements))
            done.append((result.tensor, result.whole))
        return done

    results, _ = run(tmp_path, plan, work)
    for k in range(rounds):
        for member in plan.members:
            [group] = [its.members for its in plan.groups_in(k + 1) if member in its.members]
            tensor, whole = results[member][k]  # type: ignore[index]
            expected = torch.stack([values(m, k, elements).double() for m in group]).mean(0)
            assert whole == plan.among_all(k + 1)
            assert (tensor - expected).abs().max() <= 1e-6
            assert torch.equal(tensor, results[group[0]][k][0])  # type: ignore[index]


def test_a_plan_that_all_hold_by_the_end_of_a_round_is_used_in_the_next(tmp_path: Path) -> None:
    """The other members have contributed long before, when they had only the old plan."""
    members = names(3)
    held = threading.Event()
    there: dict[str, sync.Session] = {}

    def work(session: sync.Session) -> list[int]:
        there[session.name] = session
        if session.name == "m2":
            held.wait(PATIENCE_S)
        return [session.allreduce(torch.ones(1000)).epoch for _ in range(2)]

    def contributors() -> int:
        """Return a bitmap of the members whose values the root has added in the current round."""
        current = there["m0"]._engine.current._rounds.current if "m0" in there else None
        part = None if current is None else current.reduction.chunk(0).part
        return 0 if part is None else part.contributors

    def swap(controller: Controller) -> None:
        until(lambda: contributors() == 0b011)
        controller.prepare(Plan(1, members, (chain(members),)))
        controller.await_messages(Held, len(members))
        until(lambda: there["m0"]._engine.current.plans.confirmed == 1)  # the root has got Confirm
        held.set()

    with Controller(tmp_path, Plan(0, members, (star(members, "m0"),)), job()) as controller:
        thread = threading.Thread(target=swap, args=(controller,))
        thread.start()
        results = run_with(controller, work)
        thread.join()
    assert all(results[member] == [0, 1] for member in members)


@pytest.mark.parametrize("seed", range(4))
def test_keys_change_when_means_travel_and_not_what_they_are(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    plan = random_plan(draw, names(5), 0, 1024)
    keyed = replace(plan, trees=tuple(replace(tree, keys=(0.1, 0.6, 0.3)) for tree in plan.trees))
    weights = {m: draw.uniform(0.1, 40) for m in plan.members}
    results, _ = run(tmp_path, keyed, reducing(3, 4001, weights))
    check_exact(results, 3, 4001, weights)


@pytest.mark.parametrize("seed", range(4))
def test_random_auxiliary_routes_change_nothing_but_the_way(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    plan = random_plan(draw, names(6), 0, 1024)
    plan = replace(plan, auxiliary=random_routes(draw, plan.members))
    weights = dict.fromkeys(plan.members, 1.0)
    results, controller = run(tmp_path, plan, reducing(6, 10_000, weights), job(streams=2))
    check_exact(results, 6, 10_000, weights)
    assert {(r.lost, r.duplicated) for r in controller.reports()} == {(0, 0)}


def test_auxiliary_routes_take_over_what_waits_for_a_busy_edge(tmp_path: Path) -> None:
    """A leaf queues all its chunks at once, which are many here; both hops of the route are measured."""
    members = names(3)
    plan = Plan(0, members, (star(members, "m1"),), 16 * 1024, auxiliary=(Route("m0", "m1", ("m2",)),))
    elements = 2_000_000
    weights = dict.fromkeys(members, 1.0)
    results, controller = run(tmp_path, plan, reducing(4, elements, weights))
    check_exact(results, 4, elements, weights)

    def moved(member: str, peer: str) -> int:
        samples = [s for report in controller.reports() if report.member == member for s in report.peers]
        return sum(sample.auxiliary_bytes for sample in samples if sample.peer == peer)

    assert moved("m0", "m2") > 16 * 1024 and moved("m2", "m1") > 16 * 1024
    assert not moved("m1", "m0") and not moved("m0", "m1")


def test_swaps_between_plans_with_auxiliary_routes(tmp_path: Path) -> None:
    members, elements, draw = names(5), 3_000, random.Random(3)
    swaps = 30

    def plan(epoch: int) -> Plan:
        made = random_plan(draw, members, epoch, draw.choice([1024, 4096]))
        return replace(made, auxiliary=random_routes(draw, members))

    def swap(controller: Controller) -> None:
        controller.await_condition(lambda: len(controller.roster) == len(members))
        for epoch in range(1, swaps + 1):
            controller.prepare(plan(epoch))
            controller.await_condition(lambda: epoch in controller.in_force)  # noqa: B023

    with Controller(tmp_path, plan(0), job()) as controller:
        thread = threading.Thread(target=swap, args=(controller,))
        thread.start()
        results = run_with(controller, reducing_until(swaps, elements))
        thread.join()
    check_exact(results, len(results["m0"]), elements, dict.fromkeys(members, 1.0))  # type: ignore[arg-type]
    assert {(r.lost, r.duplicated) for r in controller.reports()} == {(0, 0)}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sixteen_bit_tensors_are_rounded_once_a_hop(tmp_path: Path, dtype: torch.dtype) -> None:
    """With weights of 1,000 and values of 300, sums would exceed float16's largest number if they were sent."""
    members = names(4)
    trees = (replace(chain(members), share=0.5), replace(star(members, "m2"), share=0.5))
    plan = Plan(0, members, trees, 1024)

    def work(session: sync.Session) -> torch.Tensor:
        return session.allreduce((values(session.name, 0, 3000) * 300).to(dtype), weight=1000.0).tensor

    results, _ = run(tmp_path, plan, work)
    contributed = torch.stack([(values(m, 0, 3000) * 300).to(dtype).double() for m in members])
    tolerance = contributed.abs().max(0).values * torch.finfo(dtype).eps * len(members)
    for result in results.values():
        assert isinstance(result, torch.Tensor) and result.dtype == dtype and torch.equal(result, results["m0"])  # type: ignore[arg-type]
        assert ((result.double() - contributed.mean(0)).abs() <= tolerance).all()


def test_reproducible_sums_have_the_same_bits_run_after_run(tmp_path: Path) -> None:
    """The sums of the root's children come in another order each time."""
    members = names(5)
    plan = Plan(0, members, (star(members, "m0"),), 1024)

    def bits(folder: str, order: list[int]) -> torch.Tensor:
        def work(session: sync.Session) -> torch.Tensor:
            time.sleep(0.03 * order[int(session.name[1:])])
            return session.allreduce(values(session.name, 0, 5000), weight=1.7).tensor

        (tmp_path / folder).mkdir()
        results, _ = run(tmp_path / folder, plan, work, job(reproducible=True))
        return results["m3"]  # type: ignore[return-value]

    assert torch.equal(bits("one", [0, 1, 2, 3, 4]), bits("other", [4, 3, 2, 1, 0]))


def test_a_round_says_where_its_time_went(tmp_path: Path) -> None:
    members = names(3)
    plan = Plan(0, members, (star(members, "m1"),), 64 * 1024)
    _, controller = run(tmp_path, plan, reducing(3, 1_000_000, dict.fromkeys(members, 1.0)))
    reports = controller.reports()
    root = [report for report in reports if report.member == "m1"]
    assert all(report.add_s > 0 and report.receive_s > 0 for report in root)
    assert sum(report.send_s for report in reports) > 0
    samples = [sample for report in reports for sample in report.peers]
    assert any(sample.queued_s > 0 for sample in samples)
    assert all(isinstance(sample, PeerSample) and sample.auxiliary_bytes == 0 for sample in samples)
