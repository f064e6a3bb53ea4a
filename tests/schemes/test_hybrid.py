"""Members with unequal numbers of steps in a round, normalised as in FedNova and held back as in FedProx."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from testbed import sync
from testbed.plan import Group, Plan
from testbed.schemes.hybrid import Due, Hybrid, HybridOptions, build, work
from testbed.schemes.options import OuterOptions
from testbed.schemes.training import RoundTraining
from tests.sync.plans import names, star
from tests.sync.sessions import run
from tests.sync.strategies.training import around, flat, model, step

pytestmark = pytest.mark.local

MEMBERS = names(4)
STEPS = {"m0": 4, "m1": 1, "m2": 2, "m3": 1}
MEAN = 2.0
GROUPS = (MEMBERS[:2], MEMBERS[2:])
PLAN = Plan(
    0,
    MEMBERS,
    (star(MEMBERS, "m1"),),
    groups=tuple(Group(group, (star(group, group[0]),)) for group in GROUPS),
    period=2,
)
ROUNDS = 4


#: The members' mean, as it is.
MEANS = OuterOptions(learning_rate=1.0, momentum=0.0)


def hybrid(session: sync.Session, net: nn.Module, optimizer: torch.optim.Optimizer, due: Due, **options: Any) -> Any:
    training = RoundTraining(session, list(net.parameters()), 1.0)
    return around(Hybrid(training, HybridOptions(outer=MEANS, **options), due), optimizer)


def in_groups(session: sync.Session, prox: float) -> torch.Tensor:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    own = STEPS[session.name]
    with hybrid(session, net, optimizer, lambda: (own, own / MEAN), prox=prox):
        for number in range(own * ROUNDS):
            step(net, optimizer, session.name, number)
    return flat(net)


def by_hand(prox: float) -> torch.Tensor:
    """Compute the scheme: in every round a group moves by the mean of its members' changes, each divided by its work.

    In every second round all move to the mean of the groups.
    """
    at = {member: flat(model()) for member in MEMBERS}
    anchor = flat(model())
    for number in range(ROUNDS):
        moved = {}
        for member in MEMBERS:
            net = model()
            nn.utils.vector_to_parameters(at[member].clone(), net.parameters())
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for i in range(STEPS[member]):
                step(net, optimizer, member, number * STEPS[member] + i)
                nn.utils.vector_to_parameters(flat(net).lerp(at[member], prox), net.parameters())
            moved[member] = at[member] + (flat(net) - at[member]) * MEAN / STEPS[member]
        for party in (MEMBERS,) if number % 2 else GROUPS:
            mean = torch.stack([moved[member] for member in party]).mean(0)
            at |= dict.fromkeys(party, mean)
            anchor = mean
    return anchor


@pytest.mark.parametrize("prox", [0.0, 0.2])
def test_changes_are_divided_by_the_work_behind_them(tmp_path: Path, prox: float) -> None:
    for parameters in run(tmp_path, PLAN, lambda session: in_groups(session, prox)).values():
        torch.testing.assert_close(parameters, by_hand(prox), atol=1e-6, rtol=1e-5)


def beside_steps(session: sync.Session) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a member's parameters at the end, and the agreed parameters before the last step."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    own = STEPS[session.name]
    with hybrid(session, net, optimizer, lambda: (own, own / MEAN), overlap=True) as strategy:
        for number in range(own * ROUNDS):
            if number == own * ROUNDS - 1:
                with strategy.agreed():
                    agreed = flat(net)
            step(net, optimizer, session.name, number)
    return flat(net), agreed


def beside_steps_by_hand() -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the same: the mean change of a round is added after the next round's steps; nothing is left out."""
    at = {member: flat(model()) for member in MEMBERS}
    base, common = dict(at), [flat(model())]
    under_way: dict[str, torch.Tensor] = {}
    for number in range(ROUNDS + 1):
        moved = {}
        for member in MEMBERS:
            net = model()
            nn.utils.vector_to_parameters(at[member].clone(), net.parameters())
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for i in range(STEPS[member] if number < ROUNDS else 0):
                step(net, optimizer, member, number * STEPS[member] + i)
            moved[member] = flat(net) - at[member]
        if under_way:
            for party in GROUPS if number % 2 else (MEMBERS,):
                mean = torch.stack([base[m] + under_way[m] * MEAN / STEPS[m] for m in party]).mean(0)
                base |= dict.fromkeys(party, mean)
            if number % 2 == 0:
                common.append(mean)
        at = {member: base[member] + moved[member] for member in MEMBERS}
        under_way = moved
    return common[-1], common[-2]


def descend(strategy: Hybrid, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Take steps along a gradient of 1 everywhere, for ROUNDS rounds."""
    while strategy.periods < ROUNDS:
        optimizer.zero_grad()
        sum(parameter.sum() for parameter in net.parameters()).backward()
        optimizer.step()


def test_steps_may_change_from_round_to_round(tmp_path: Path) -> None:
    """m0 is told to take 1, then 3 and then 4 steps; divided by its work, each round's change counts the same."""
    told = {"m0": [1, 3, 4, 4], **{member: [STEPS[member]] * 4 for member in MEMBERS[1:]}}

    def train(session: sync.Session) -> torch.Tensor:
        net, counts = model(), list(told[session.name])
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def due() -> tuple[int, float]:
            count = counts.pop(0) if counts else 1
            return count, count / MEAN

        with hybrid(session, net, optimizer, due) as strategy:
            descend(strategy, net, optimizer)
        return flat(net)

    for parameters in run(tmp_path, PLAN, train).values():
        torch.testing.assert_close(parameters, flat(model()) - 0.1 * MEAN * ROUNDS, atol=1e-6, rtol=1e-5)


def test_without_an_assignment_changes_are_divided_by_the_steps_of_the_options(tmp_path: Path) -> None:
    every = 2

    def train(session: sync.Session) -> torch.Tensor:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        training = RoundTraining(session, list(net.parameters()), 1.0, steps=lambda: STEPS[session.name])
        with around(build(HybridOptions(every=every, outer=MEANS), training), optimizer) as strategy:
            descend(strategy, net, optimizer)
        return flat(net)

    for parameters in run(tmp_path, PLAN, train).values():
        torch.testing.assert_close(parameters, flat(model()) - 0.1 * every * ROUNDS, atol=1e-6, rtol=1e-5)


def test_the_steps_of_a_user_s_loop_are_those_of_the_options_in_the_ratio_of_the_plan_s() -> None:
    """The plan's own mean of 8 steps does not count."""
    for own, count in ((8, 32), (4, 16), (12, 48), (None, 32)):
        training = RoundTraining(
            None, list(model().parameters()), 1.0, steps=lambda own=own: own, mean_steps=lambda: 8.0
        )  # type: ignore[arg-type, misc]
        strategy = build(HybridOptions(every=32), training)
        assert (strategy._every, strategy._scale) == (count, pytest.approx(32 / count))


def test_a_period_goes_on_from_a_checkpoint_with_its_own_steps(tmp_path: Path) -> None:
    """The plan in force as members continue has other steps, which count from the next period on."""
    other = 3

    def train(session: sync.Session) -> tuple[int, torch.Tensor]:
        net, own = model(), STEPS["m0"]
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def strategy_of(count: int) -> Hybrid:
            training = RoundTraining(session, list(net.parameters()), 1.0)
            return Hybrid(training, HybridOptions(outer=MEANS), lambda: (count, count / MEAN))

        before = strategy_of(own)
        for _ in range(own - 1):
            before.after_step()
        after = strategy_of(other)
        after.load_state_dict(before.state_dict())
        with around(after, optimizer):
            sum(parameter.sum() for parameter in net.parameters()).backward()
            optimizer.step()
            rounds = session.rounds
        return rounds, flat(net)

    for rounds, parameters in run(tmp_path, Plan(0, MEMBERS, PLAN.trees), train).values():
        assert rounds == 1
        torch.testing.assert_close(parameters, flat(model()) - 0.1 * MEAN / STEPS["m0"], atol=1e-6, rtol=1e-5)


def test_rounds_beside_the_next_ones_steps_lose_nothing(tmp_path: Path) -> None:
    end, before = beside_steps_by_hand()
    for parameters, agreed in run(tmp_path, PLAN, beside_steps).values():
        torch.testing.assert_close(parameters, end, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(agreed, before, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "work", "said"),
    [({}, 0.0, "0"), ({"prox": 1.0}, 1.0, "^prox: "), ({"overlap": True, "prox": 0.1}, 1.0, "^prox: ")],
)
def test_options_that_make_no_sense(options: dict[str, Any], work: float, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        hybrid(None, model(), torch.optim.SGD(model().parameters()), lambda: (4, work), **options)  # type: ignore[arg-type]


def test_steps_count_by_the_members_mean_work() -> None:
    assert work(2, (8, 2), prox=0.0) == pytest.approx(2 / 5)
    assert work(4, (8, 2), prox=0.0) == pytest.approx(4 / 5)
    assert work(3, (), prox=0.0) == 1
