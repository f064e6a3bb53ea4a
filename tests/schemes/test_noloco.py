"""NoLoCo's outer steps, alone, in pairs and among many."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
import torch
from torch import Tensor

from testbed.schemes.noloco import NoLoCoMember, NoLoCoOptions, pairs
from tests.sync.gossip.quadratic import Quadratics
from tests.sync.gossip.simulation import Conditions, Simulation

pytestmark = pytest.mark.pure

SEED = 1


def members(problem: Quadratics, options: NoLoCoOptions, iterations: int) -> dict[str, NoLoCoMember]:
    names = tuple(problem.start)
    return {name: NoLoCoMember(name, names, options, problem.start[name], iterations, SEED) for name in names}


def simulate(problem: Quadratics, made: dict[str, NoLoCoMember], seed: int = 1) -> None:
    draw = Random(seed)
    conditions = Conditions(lambda *_: draw.uniform(0.5, 3), lambda *_: draw.uniform(0, 2), problem.change)
    Simulation(made, conditions).run()


def after_steps(problem: Quadratics, name: str, begin: Tensor, first: int, count: int) -> Tensor:
    for number in range(first, first + count):
        begin = begin + problem.change(name, number, begin)
    return begin


def test_one_alone_takes_momentum_steps_by_what_it_changed() -> None:
    problem = Quadratics(("a",), Random(1))
    made = members(problem, NoLoCoOptions(every=3, learning_rate=0.7, momentum=0.5), 4)
    simulate(problem, made)
    at, momentum = problem.start["a"], torch.zeros(3)
    for iteration in range(4):
        momentum = 0.5 * momentum - 0.7 * (at - after_steps(problem, "a", at, 3 * iteration, 3))
        at = at + momentum
    torch.testing.assert_close(made["a"].parameters, at)


def test_two_at_a_rate_of_one_and_without_momentum_are_local_sgd() -> None:
    problem = Quadratics(("a", "b"), Random(2))
    made = members(problem, NoLoCoOptions(every=2, learning_rate=1.0, momentum=0.0), 5)
    simulate(problem, made)
    at = dict(problem.start)
    for iteration in range(5):
        ends = [after_steps(problem, name, at[name], 2 * iteration, 2) for name in at]
        at = dict.fromkeys(at, sum(ends, torch.zeros(3)) / 2)
    for member in made.values():
        torch.testing.assert_close(member.parameters, at["a"])


@pytest.mark.parametrize("count", [6, 7])
def test_many_come_near_the_common_optimum(count: int) -> None:
    problem = Quadratics(tuple(f"w{number}" for number in range(count)), Random(3))
    made = members(problem, NoLoCoOptions(every=2), 120)
    simulate(problem, made)
    apart = max(problem.distance(start) for start in problem.start.values())
    assert max(problem.distance(member.parameters) for member in made.values()) < 0.2 * apart


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_each_has_one_other_and_all_have_all_in_time(count: int) -> None:
    names = tuple(f"w{number}" for number in range(count))
    met: Counter[tuple[str, str]] = Counter()
    for iteration in range(400):
        found = pairs(names, SEED, iteration)
        assert set(found) == set(names) and all(found[found[name]] == name for name in names)
        assert sum(name == other for name, other in found.items()) == count % 2
        met.update(found.items())
    assert len(met) == count * count - (0 if count % 2 else count)
