"""HALoS' workers and servers, under simulated time."""

from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from testbed.schemes.halos import (
    DelayedNesterov,
    DelayedOptions,
    GlobalModel,
    GlobalOptions,
    GlobalServer,
    HalosOptions,
    HalosWorker,
    SitePush,
    SiteServer,
    WorkerPush,
)
from tests.sync.gossip.quadratic import Quadratics
from tests.sync.gossip.simulation import Conditions, Simulation

pytestmark = pytest.mark.pure

SITES = {"a0": ("a0", "a1", "a2"), "b0": ("b0", "b1"), "c0": ("c0",)}
NAMES = tuple(name for names in SITES.values() for name in names)
#: What comes is taken over as it is.
PLAIN = GlobalOptions(learning_rate=1.0, momentum=0.0, buffer=1)


def members(
    options: HalosOptions, start: Tensor, iterations: int, names: tuple[str, ...] = NAMES
) -> dict[str, HalosWorker]:
    made: dict[str, HalosWorker] = {}
    for server, workers in SITES.items():
        for name in workers:
            if name not in names:
                continue
            if name == "a0":
                made[name] = GlobalServer(name, ("b0", "c0"), options, start, iterations, options.every)
            elif name == server:
                made[name] = SiteServer(name, "a0", options, start, iterations, options.every)
            else:
                made[name] = HalosWorker(name, server, start, iterations, options.every)
    return made


def test_a_buffer_of_one_is_sgd_with_nesterov_momentum() -> None:
    draw = torch.Generator().manual_seed(1)
    begin = torch.randn(5, generator=draw)
    server = DelayedNesterov(begin, DelayedOptions(learning_rate=0.3, momentum=0.8, buffer=1))
    theirs = torch.nn.Parameter(begin.clone())
    optimizer = torch.optim.SGD([theirs], lr=0.3, momentum=0.8, nesterov=True)
    for _ in range(7):
        change = torch.randn(5, generator=draw)
        server.step(change)
        theirs.grad = change
        optimizer.step()
    torch.testing.assert_close(server.values, theirs.detach())


def test_momentum_moves_in_each_nth_step_by_the_mean_of_n() -> None:
    server = DelayedNesterov(torch.zeros(1), DelayedOptions(learning_rate=0.5, momentum=0.9, buffer=3))
    at = []
    for change in (1.0, 2.0, 6.0, 1.0):
        server.step(torch.tensor([change]))
        at.append(float(server.values))
    m = (1 + 2 + 6) / 3
    third = -0.5 * 9 - 0.5 * 3 * 0.9 * m
    assert at == pytest.approx([-0.5, -1.5, third, third - 0.5])


def test_one_alone_is_its_inner_optimizer() -> None:
    problem = Quadratics(("a0",), Random(1))
    options = HalosOptions(every=3, accumulate=1, merge=1.0, site=PLAIN, overall=PLAIN)
    made = members(options, problem.start["a0"], 5, ("a0",))
    Simulation(made, Conditions(change=problem.change)).run()
    expected = problem.start["a0"]
    for number in range(15):
        expected = expected + problem.change("a0", number, expected)
    torch.testing.assert_close(made["a0"].parameters, expected)


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), accumulate=st.integers(1, 5))
def test_a_site_pushes_once_at_a_time_and_each_push_is_answered(seed: int, accumulate: int) -> None:
    draw = Random(seed)
    pace = {name: draw.choice((0.5, 1.0, 3.0)) for name in NAMES}
    conditions = Conditions(
        step_time=lambda member, _: pace[member], delay=lambda *_: draw.uniform(0, 4), random=draw, in_order=False
    )
    made = members(HalosOptions(every=2, accumulate=accumulate), torch.zeros(3), 8)
    simulation = Simulation(made, conditions)
    simulation.run()
    messages = [(pair, message) for pair, message in simulation.log if isinstance(message, SitePush | GlobalModel)]
    for server in ("b0", "c0"):
        its = [type(message) for pair, message in messages if server in pair]
        assert its == [SitePush, GlobalModel] * (len(its) // 2)
    pushes = [pair[0] for pair, message in simulation.log if isinstance(message, WorkerPush)]
    assert all(pushes.count(name) == 8 for name in NAMES)


def test_a_site_tells_what_its_pushes_came_to_and_moves_towards_what_comes_back() -> None:
    site = SiteServer("b0", "a0", HalosOptions(accumulate=2, merge=0.25, site=PLAIN), torch.zeros(1), 1, 1)
    first = list(site.receive("b1", WorkerPush(1, torch.tensor([-2.0]))))
    second = list(site.receive("b1", WorkerPush(2, torch.tensor([-6.0]))))
    assert [send.to for send in first] == ["b1"] and [send.to for send in second] == ["b1", "a0"]
    assert float(second[1].message.change) == -8.0  # type: ignore[union-attr]
    third = list(site.receive("b1", WorkerPush(3, torch.tensor([-4.0]))))
    assert [send.to for send in third] == ["b1"]  # while the other is on its way
    list(site.receive("a0", GlobalModel(2, torch.tensor([20.0]))))
    list(site.receive("b1", WorkerPush(4, torch.tensor([0.0]))))
    answer, push = site.receive("b1", WorkerPush(5, torch.tensor([-1.0])))
    assert float(answer.message.parameters) == 0.75 * 12 + 0.25 * 20 + 1  # type: ignore[union-attr]
    assert float(push.message.change) == -1.0  # type: ignore[union-attr]


def test_many_come_near_the_common_optimum() -> None:
    names = ("a0", "a1", "a2")
    problem = Quadratics(names, Random(3))
    begin = problem.start["a0"]
    options = HalosOptions(every=1, accumulate=3, site=DelayedOptions(0.2, 0.5, 3), overall=GlobalOptions(0.3, 0.3, 2))
    made = members(options, begin, 200, names)
    draw = Random(5)
    Simulation(made, Conditions(change=problem.change, delay=lambda *_: draw.uniform(0, 0.5))).run()
    assert max(problem.distance(one.parameters) for one in made.values()) < 0.35 * problem.distance(begin)


def test_the_slow_hold_nobody_up() -> None:
    pace = {name: 8.0 if name in ("a2", "b1") else 1.0 for name in NAMES}
    made = members(HalosOptions(accumulate=4), torch.zeros(3), 10)
    simulation = Simulation(made, Conditions(step_time=lambda member, _: pace[member], delay=lambda *_: 0.1))
    simulation.run()
    fast = [simulation.ended[name] for name in NAMES if pace[name] == 1]
    assert max(fast) < 1.05 * 80 and min(simulation.ended[name] for name in NAMES if pace[name] > 1) > 640


def test_nobody_goes_on_without_a_server_that_it_needs() -> None:
    made = members(HalosOptions(), torch.zeros(3), 1)
    for name, gone in (("a1", "a0"), ("b1", "b0"), ("b0", "a0"), ("c0", "a0")):
        with pytest.raises(ValueError, match=f"{name} .* {gone}, "):
            made[name].remove(gone)
    assert [*made["b1"].remove("a0")] == [*made["a0"].remove("c0")] == []


@pytest.mark.parametrize("gone", ["a2", "b1", "c0"])
def test_a_worker_that_dies_delays_nobody_and_comes_back_to_the_others_model(gone: str) -> None:
    """A worker comes back to its site's model, a site of one worker to the global model."""
    options = HalosOptions(every=2, accumulate=2, site=DelayedOptions(0.5, 0.0, 1), overall=PLAIN)
    made = members(options, torch.zeros(3), 30)

    def towards_three(member: str, number: int, parameters: Tensor) -> Tensor:
        return (3 - parameters) / 10

    simulation = Simulation(made, Conditions(change=towards_three, delay=lambda *_: 0.1))
    server = next(server for server, names in SITES.items() if gone in names)
    begun: list[Tensor] = []

    def die() -> None:
        simulation.kill(gone)
        for name in NAMES:
            if name != gone:
                simulation.tell(name, made[name].remove(gone))

    def back() -> None:
        ends = [made[name].promise(3) for name in NAMES if name != gone]
        first = max(ends)
        comer = (
            SiteServer(gone, "a0", options, torch.zeros(3), 30, 2, first)
            if gone == server
            else HalosWorker(gone, server, torch.zeros(3), 30, 2, first)
        )
        simulation.revive(gone, comer)
        for name in NAMES:
            if name != gone:
                made[name].abort()
                simulation.tell(name)
        simulation.begin(gone)
        simulation.after(0.3, lambda: begun.append(comer.parameters))
        made[gone] = comer

    simulation.after(15, die)
    simulation.after(30, back)
    simulation.run()
    assert max(simulation.ended.values()) < 1.25 * 60
    assert all(float((one.parameters - 3).abs().max()) < 0.6 for one in made.values())
    assert float(begun[0].min()) > 1
