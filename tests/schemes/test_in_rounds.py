"""Tests of all schemes that reduce in rounds.

Plans and codecs change, checkpoints are loaded, members join, and another scheme continues.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from testbed import sync
from testbed.plan import Plan
from testbed.protocol import Held
from testbed.schemes import SCHEMES
from testbed.schemes.training import RoundTraining
from testbed.schemes.wrapped import moments_of
from testbed.sync.strategies import Strategy
from testbed.sync.strategies.optimizer_steps import OptimizerSteps
from tests.sync.controller import Controller, job
from tests.sync.plans import chain, names, star
from tests.sync.sessions import run, run_with
from tests.sync.strategies.training import flat, model, step

pytestmark = pytest.mark.local

MEMBERS = names(3)
STEPS = 12
HALF = 5

#: Small enough for several rounds in so few steps.
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "gradients": {},
    "auto": {},
    "local_sgd": {"every": 3},
    "post_local_sgd": {"start": 3, "every": 3},
    "des_loc": {"every": 3, "first": 1, "second": 2},
    "diloco": {"every": 4, "fragments": 2, "delay": 1},
    "sparta": {"share": 0.2, "every": 4},
    "loscar": {"share": 0.2, "delay": 2},
    "hybrid": {"every": 3},
    "muloco": {"every": 3},
    "sparseloco": {"every": 3, "top_k": 4, "chunk": 4},
}


def strategy_of(
    name: str, session: sync.Session, net: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> Strategy:
    scheme, parameters = SCHEMES[name], list(net.parameters())
    options = scheme.read(OPTIONS[name])
    optimizers = [] if optimizer is None else [optimizer]
    training = RoundTraining(session, parameters, 1.0, moments=lambda: moments_of(parameters, optimizers))
    built: Strategy = scheme.algorithm.build(options, training)
    return built


def take_steps(
    strategy: Strategy, net: torch.nn.Module, optimizer: torch.optim.Optimizer, name: str, steps: range
) -> None:
    """Take steps with the strategy around them."""
    with OptimizerSteps(strategy, [optimizer]).counted():
        for number in steps:
            step(net, optimizer, name, number)


def adam(net: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(net.parameters(), lr=0.01)


def alike(results: Mapping[str, torch.Tensor]) -> torch.Tensor:
    first = next(iter(results.values()))
    assert all(torch.equal(first, other) for other in results.values())
    assert first.isfinite().all()
    return first


def test_all_are_tried() -> None:
    """All but `hierarchical`, which is local SGD under plans with groups."""
    assert {*OPTIONS, "hierarchical"} == {name for name, its in SCHEMES.items() if its.exchange == "all-reduce"}


@pytest.mark.parametrize("name", OPTIONS)
def test_plans_and_codecs_change_in_the_midst(tmp_path: Path, name: str) -> None:
    codec = {"fp32": "fp32" if name in ("sparta", "loscar") else "int8"}.get(SCHEMES[name].codec, SCHEMES[name].codec)
    trees = [star(MEMBERS, "m1"), chain(MEMBERS), star(MEMBERS, "m2")]
    plans = [
        Plan(epoch, MEMBERS, (tree,), codec=its)
        for epoch, (tree, its) in enumerate(zip(trees, (codec, "fp32", codec), strict=True))
    ]
    with Controller(tmp_path, plans[0], job()) as controller:

        def work(session: sync.Session) -> torch.Tensor:
            net = model()
            optimizer = adam(net)
            strategy = strategy_of(name, session, net, optimizer)
            for number in range(STEPS):
                if session.name == "m0" and number in (2, 7):
                    controller.prepare(plans[(2, 7).index(number) + 1])
                    controller.await_messages(Held, 3 * (1 + (2, 7).index(number)))
                take_steps(strategy, net, optimizer, session.name, range(number, number + 1))
            strategy.settle()
            assert session.plan.epoch == 2
            return flat(net)

        alike(run_with(controller, work))


@pytest.mark.parametrize("name", OPTIONS)
def test_it_goes_on_from_a_checkpoint_to_the_bit(tmp_path: Path, name: str) -> None:
    plan = Plan(0, MEMBERS, (chain(MEMBERS),), codec=SCHEMES[name].codec)
    files = {member: tmp_path / member for member in MEMBERS}

    def whole(session: sync.Session) -> torch.Tensor:
        net = model()
        optimizer = adam(net)
        strategy = strategy_of(name, session, net, optimizer)
        take_steps(strategy, net, optimizer, session.name, range(HALF))
        session.save(files[session.name], model=net, optimizer=optimizer, strategy=strategy)
        take_steps(strategy, net, optimizer, session.name, range(HALF, STEPS))
        strategy.settle()
        return flat(net)

    def rest(session: sync.Session) -> torch.Tensor:
        net = model()
        optimizer = adam(net)
        strategy = strategy_of(name, session, net, optimizer)
        sync.load(files[session.name]).restore(model=net, optimizer=optimizer, strategy=strategy)
        take_steps(strategy, net, optimizer, session.name, range(HALF, STEPS))
        strategy.settle()
        return flat(net)

    settings = job(reproducible=True)
    first = alike(run(tmp_path, plan, whole, settings))
    (tmp_path / "again").mkdir()
    assert torch.equal(first, alike(run(tmp_path / "again", plan, rest, settings)))


@pytest.mark.parametrize("name", [name for name in OPTIONS if SCHEMES[name].elastic and "delay" not in OPTIONS[name]])
def test_a_member_that_joins_begins_where_another_is(tmp_path: Path, name: str) -> None:
    """m2 was lost and comes back between two steps, with nothing but the state that m0 hands over."""
    plan = Plan(0, MEMBERS, (star(MEMBERS, "m1"),), codec=SCHEMES[name].codec)
    handed: dict[str, Any] = {}

    def first(session: sync.Session) -> None:
        net = model()
        optimizer = adam(net)
        strategy = strategy_of(name, session, net, optimizer)
        take_steps(strategy, net, optimizer, session.name, range(HALF))
        handed[session.name] = {
            "net": {key: value.clone() for key, value in net.state_dict().items()},
            "own": strategy.state_dict(),
            "over": strategy.handover(),
        }

    def then(session: sync.Session) -> torch.Tensor:
        came = session.name == "m2"
        net = model()
        strategy = strategy_of(name, session, net)
        state = handed["m0" if came else session.name]
        net.load_state_dict(state["net"])
        strategy.load_state_dict(state["over" if came else "own"])
        take_steps(strategy, net, adam(net), session.name, range(HALF, STEPS))
        strategy.settle()
        return flat(net)

    run(tmp_path, plan, first)
    (tmp_path / "again").mkdir()
    alike(run(tmp_path / "again", plan, then))


@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "gradients"])
@pytest.mark.parametrize("other", ["gradients", "local_sgd"])
def test_another_scheme_goes_on_and_it_after_that(tmp_path: Path, name: str, other: str) -> None:
    """The optimizer has no state here: members' own states would part them under `gradients`."""
    plan = Plan(0, MEMBERS, (star(MEMBERS, "m1"),))

    def work(session: sync.Session) -> list[torch.Tensor]:
        net = model()
        optimizer, at = torch.optim.SGD(net.parameters(), lr=0.1), []
        for turn, its in enumerate((name, other, name)):
            strategy = strategy_of(its, session, net)
            take_steps(strategy, net, optimizer, session.name, range(turn * HALF, (turn + 1) * HALF))
            strategy.settle()
            at.append(flat(net))
        return at

    results = run(tmp_path, plan, work)
    for turn in range(3):
        alike({member: at[turn] for member, at in results.items()})


@pytest.mark.parametrize("name", ["local_sgd", "muloco", "sparseloco", "des_loc"])
def test_a_shorter_period_goes_on_from_the_middle_of_a_longer_one(tmp_path: Path, name: str) -> None:
    def work(session: sync.Session) -> int:
        net, scheme = model(), SCHEMES[name]
        optimizer = torch.optim.AdamW(net.parameters())

        def made(every: int) -> Strategy:
            parameters = list(net.parameters())
            training = RoundTraining(session, parameters, 1.0, moments=lambda: moments_of(parameters, [optimizer]))
            built: Strategy = scheme.algorithm.build(scheme.read({**OPTIONS[name], "every": every}), training)
            return built

        before, after = made(8), made(4)
        for _ in range(5):
            before.after_step()
        after.load_state_dict(before.state_dict())
        after.after_step()
        return session.rounds

    plan = Plan(0, MEMBERS, (star(MEMBERS, "m1"),), codec=SCHEMES[name].codec)
    assert all(run(tmp_path, plan, work).values())
