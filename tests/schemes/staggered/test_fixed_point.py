"""The fixed point under unequal work: the common optimum with FedNova's normalisation, visibly elsewhere without.

Each member has a quadratic of its own. With steps of η = 5e-5 the parameters approach their limit slowly, along one
slow direction for each of them. Three points on that way, equally far apart in time, give the limit (Aitken).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from testbed.schemes.hybrid import accumulated
from testbed.schemes.staggered.member import StaggeredMember
from testbed.schemes.staggered.rules import StaggeredRules, Team
from testbed.sync.strategies.periodic import Nesterov
from tests.sync.gossip.simulation import Conditions, Simulation, Watcher

pytestmark = pytest.mark.pure

RATE = 5e-5
#: Groups begin one after the other: what came in another order would be noise, which extrapolating makes larger.
STARTS = {"c": 0.1, "d": 0.1, "e": 0.2}
#: As many rounds as all periods take to come round, some times over.
STRETCH = 24

MEMBERS = ("a", "b", "c", "d", "e")
CENTRES = dict(zip(MEMBERS, torch.tensor([[0.0, 3], [4, -1], [10, 2], [-3, 5], [1, 1]]).double(), strict=True))
CURVES = dict(zip(MEMBERS, torch.tensor([[1.0, 0.5], [0.7, 1], [1, 0.8], [0.6, 0.9], [1, 1]]).double(), strict=True))

#: Two groups and one member alone; steps 1 to 8; periods 1, 2 and 4.
TEAMS = (Team(("a", "b"), ("a",), 1), Team(("c", "d"), ("d",), 4, 1), Team(("e",), ("e",), 2, 1))
STEPS = {"a": 8, "b": 2, "c": 4, "d": 1, "e": 6}
NOBODY: Mapping[str, float] = {}
EQUAL = dict.fromkeys(MEMBERS, 1.0)
#: The last round is not like the others: all groups exchange in it.
ROUNDS = 3 * STRETCH + 2
RULES = StaggeredRules(TEAMS, ROUNDS, STEPS, EQUAL)


def optimum(samples: dict[str, float]) -> Tensor:
    weighted = sum((samples[m] * CURVES[m] * CENTRES[m] for m in MEMBERS), torch.zeros(2).double())
    return weighted / sum((samples[m] * CURVES[m] for m in MEMBERS), torch.zeros(2).double())


class Path(Watcher):
    """Records the global model each time the member that holds all of it has completed a stretch."""

    def __init__(self, member: StaggeredMember, stretch: int) -> None:
        self.points: list[Tensor] = []
        self._member = member
        self._stretch = stretch

    def advanced(self, member: str, iteration: int) -> None:
        if member == self._member.name and iteration and iteration % self._stretch == 0:
            self.points.append(self._member.parameters)


def settles_at(rules: StaggeredRules, stretch: int = STRETCH, slower: Mapping[str, float] = NOBODY) -> Tensor:
    """Return the limit of the parameters under the rules, from the last three stretches.

    Rounds take equally long for all members, except those in `slower`, which are slower by a factor.
    """

    def change(member: str, iteration: int, parameters: Tensor) -> Tensor:
        return -RATE * CURVES[member] * (parameters - CENTRES[member])

    start = torch.tensor([2.0, 2.0], dtype=torch.float64)
    members = {name: StaggeredMember(name, rules, start) for name in MEMBERS}
    path = Path(members["a"], stretch)
    step_s = {name: slower.get(name, 1.0) / rules.steps[name] for name in MEMBERS}
    conditions = Conditions(step_time=lambda member, _: step_s[member], change=change, starts=STARTS)
    Simulation(members, conditions, path).run()
    first, second, third = path.points[-3:]
    before, after = second - first, third - second
    return third - after.square() / (after - before)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"staleness": 0},
        {"prox": 0.05},
        {"samples": {"a": 100.0, "b": 300.0, "c": 50.0, "d": 200.0, "e": 20.0}},
        {"teams": tuple(replace(team, owners=team.members) for team in TEAMS)},
        {"teams": (Team(("a", "b"), ("a",), 2, 1), Team(("c", "d", "e"), ("c", "e"), 3, 0))},
    ],
    ids=lambda changes: ", ".join(changes) or "plain",
)
def test_normalised_it_is_the_common_optimum(changes: dict[str, object]) -> None:
    rules = replace(RULES, **changes)
    error = (settles_at(rules) - optimum(dict(rules.samples))).abs().max()
    assert error < 1e-3


@pytest.mark.parametrize(
    ("slower", "staleness"), [({"e": 2.0}, None), ({"e": 2.0}, 3), ({"c": 1.1, "d": 1.1}, 3)], ids=str
)
def test_a_member_that_is_always_a_little_later_counts_as_much(slower: dict[str, float], staleness: int | None) -> None:
    """Only the order of moves differs, while slow members fall behind until the others wait: so stretches are long."""
    stretch = 6 * STRETCH
    rules = replace(RULES, staleness=staleness, rounds=4 * stretch + 2)
    assert (settles_at(rules, stretch, slower) - optimum(EQUAL)).abs().max() < 5e-3


def test_an_outer_momentum_leads_to_the_same_point() -> None:
    """Each move counts lr/(1 − momentum) in the end, whichever member made it and when.

    The first stretch differs from the others while the momentum builds up, and moves in another order lead elsewhere
    for a while.
    """
    stretch = 3 * STRETCH
    rules = replace(RULES, outer=Nesterov(0.7, 0.9), staleness=0, rounds=4 * stretch + 2)
    assert (settles_at(rules, stretch) - optimum(EQUAL)).abs().max() < 1e-3


def test_without_the_norm_it_is_elsewhere() -> None:
    error = (settles_at(replace(RULES, normalise=False)) - optimum(EQUAL)).abs().max()
    assert error > 0.3


@pytest.mark.parametrize(("factor", "share"), [(True, 0.5), (False, 0.2)])
def test_periods_are_made_up_for(factor: bool, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two equal groups with periods 1 and 4, at 0 and 1, settle at 0.5; at 0.20 if a merge counts the same for both."""
    for member in MEMBERS[:2]:
        monkeypatch.setitem(CURVES, member, torch.ones(2).double())
    monkeypatch.setitem(CENTRES, "a", torch.zeros(2).double())
    monkeypatch.setitem(CENTRES, "b", torch.ones(2).double())
    teams = (Team(("a",), ("a",), 1), Team(("b",), ("b",), 4, 3))
    rules = StaggeredRules(teams, ROUNDS, {"a": 2, "b": 2}, {"a": 1.0, "b": 1.0})
    if not factor:
        plain = StaggeredRules.weight
        monkeypatch.setattr(StaggeredRules, "weight", lambda self, k: plain(self, k) / self.teams[k].period)
    monkeypatch.setattr("tests.schemes.staggered.test_fixed_point.MEMBERS", ("a", "b"))
    assert settles_at(rules).tolist() == pytest.approx([share, share], abs=1e-3)


def test_the_length_of_local_steps() -> None:
    assert accumulated(5) == 5
    assert accumulated(2, prox=0.1) == pytest.approx((0.9 + 1) * 0.9)
