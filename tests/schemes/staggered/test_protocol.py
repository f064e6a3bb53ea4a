"""The hybrid scheme under any delays: it ends, all members agree, and no group is farther ahead than it may be."""

from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from testbed.schemes.staggered.member import StaggeredMember
from testbed.schemes.staggered.rules import StaggeredRules, Team
from tests.sync.gossip.simulation import Conditions, Simulation, Watcher

pytestmark = pytest.mark.pure

ROUNDS = 12


def random_rules(draw: Random) -> StaggeredRules:
    """Draw two to four groups of one to three members, with leaders or shards, periods from 1 to 5, any staleness."""
    teams, count = [], 0
    for _ in range(draw.randint(2, 4)):
        members = tuple(f"m{count + i}" for i in range(draw.randint(1, 3)))
        count += len(members)
        period = draw.randint(1, 5)
        owners = members if draw.random() < 0.5 else (draw.choice(members),)
        teams.append(Team(members, owners, period, draw.randrange(period)))
    names = [member for team in teams for member in team.members]
    return StaggeredRules(
        tuple(teams),
        ROUNDS,
        steps={name: draw.randint(1, 4) for name in names},
        samples={name: draw.uniform(0.5, 2) for name in names},
        staleness=draw.choice([None, 0, 1, 5]),
    )


class Ahead(Watcher):
    """Asserts that no member enters a round while a group owes an exchange that the last round should have waited for.

    Round r is iteration r - 1.
    """

    def __init__(self, rules: StaggeredRules) -> None:
        self._rules = rules
        self._entered = dict.fromkeys(rules.steps, 1)

    def advanced(self, member: str, iteration: int) -> None:
        self._entered[member] = iteration + 1
        team = self._rules.teams[self._rules.team_of(member)]
        before = iteration
        if not iteration or team.next_exchange(before - 1, ROUNDS) != before:
            return
        wanted = before if self._rules.staleness is None else before - self._rules.staleness - 1
        for other in self._rules.teams:
            if other is not team:
                # Who is in round r has begun it, so its exchanges before r are over; that of r may be merged already.
                reached = max(self._entered[name] for name in other.members)
                due = other.next_exchange(reached, ROUNDS)
                assert due is None or due > wanted or reached >= wanted, f"{member} is ahead of {other}"


@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_all_end_with_the_same_parameters(seed: int) -> None:
    draw = Random(seed)
    rules = random_rules(draw)
    start = torch.arange(5, dtype=torch.float32)
    members = {name: StaggeredMember(name, rules, start) for name in rules.steps}

    def change(member: str, iteration: int, parameters: Tensor) -> Tensor:
        return 0.1 * (float(member[1:]) - parameters)

    conditions = Conditions(
        step_time=lambda member, iteration: draw.choice((1.0, 1.0, 6.0)),
        delay=lambda sender, receiver: draw.uniform(0, 3),
        change=change,
        random=draw,
        in_order=False,
    )
    Simulation(members, conditions, Ahead(rules)).run()
    one, *others = (member.parameters for member in members.values())
    assert all(torch.equal(one, other) for other in others)
    assert not torch.equal(one, start)


def test_with_one_group_and_equal_steps_it_is_an_average() -> None:
    names = ("a", "b")
    rules = StaggeredRules((Team(names, names),), 1, dict.fromkeys(names, 1), {"a": 1.0, "b": 3.0})
    members = {name: StaggeredMember(name, rules, torch.zeros(4)) for name in names}
    aims = {"a": torch.ones(4), "b": torch.full((4,), 5.0)}
    Simulation(members, Conditions(change=lambda member, *_: aims[member])).run()
    assert members["a"].parameters.tolist() == [4.0] * 4


@pytest.mark.parametrize(
    ("period", "phase", "after", "due"),
    [(1, 0, 0, 1), (4, 1, 0, 1), (4, 1, 1, 5), (4, 0, 0, 4), (4, 0, 9, 10), (3, 2, 10, None)],
)
def test_when_exchanges_are_due(period: int, phase: int, after: int, due: int | None) -> None:
    """The last round, 10, is global."""
    assert Team(("a",), ("a",), period, phase).next_exchange(after, last=10) == due


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"steps": {"a": 1}}, "steps"),
        ({"samples": {"a": 1.0, "b": 0.0}}, "samples"),
        ({"prox": 1.0}, "prox 1.0"),
        ({"teams": (Team(("a",), ("a",)), Team(("a", "b"), ("b",)))}, "teams"),
    ],
)
def test_rules_that_make_no_sense(changes: dict[str, object], said: str) -> None:
    whole = {
        "teams": (Team(("a", "b"), ("a",)),),
        "rounds": 1,
        "steps": {"a": 1, "b": 1},
        "samples": {"a": 1.0, "b": 1.0},
    }
    with pytest.raises(ValueError, match=said):
        StaggeredRules(**{**whole, **changes})  # type: ignore[arg-type]


def test_a_team_that_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="owners"):
        Team(("a",), ("b",))
    with pytest.raises(ValueError, match="phase 2"):
        Team(("a",), ("a",), 2, 2)
