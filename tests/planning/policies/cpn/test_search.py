"""The heuristic: near the optimum, the same every time, and bounded by what it may look at."""

from __future__ import annotations

import itertools

import pytest

from testbed.planning.policies.cpn import Costs, Prices, Problem, schedule, search
from tests.planning.policies.cpn.campaign import WITHIN, excess
from tests.planning.policies.cpn.instances import labels_of, problem_of, view_of

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("seed", range(24))
def test_it_comes_within_a_twentieth_of_the_optimum(seed: int) -> None:
    """A share of `python -m tests.planning.policies.cpn.campaign`, with up to 6 members."""
    assert -1e-9 <= excess(seed, most=6) <= WITHIN


def test_the_same_seed_gives_the_same_grouping() -> None:
    one, other = (search(problem_of(3, 14), Prices(), seed=5) for _ in range(2))
    assert one == other


@pytest.mark.parametrize("count", [9, 20])
def test_every_member_is_in_one_group(count: int) -> None:
    groups = search(problem_of(count, count), Prices()).groups
    assert sorted(itertools.chain(*(group.ring for group in groups))) == list(range(count))
    assert all(set(group.leaders) <= set(group.ring) for group in groups)


def test_from_a_beginning_it_never_gets_worse() -> None:
    problem = problem_of(4, 10)
    rings = [tuple(range(5)), tuple(range(5, 10))]
    before = schedule([Costs(problem).of(ring) for ring in rings], Prices()).cost
    assert search(problem, Prices(), begin=rings).cost < before


def test_labels_that_differ_pull_groups_together() -> None:
    """Two pairs that hold one label each: grouped across the labels as soon as skew costs enough."""
    view = view_of(3, 4)
    labels = {name: [100.0, 0.0] if i < 2 else [0.0, 100.0] for i, name in enumerate(view.names)}
    problem = Problem.of(view, 0.1, 8, labels)
    assert max(group.skew for group in search(problem, Prices(skew=100.0)).groups) == pytest.approx(0)
    alone = Costs(problem).of((0, 1))
    assert alone.skew == pytest.approx(0.311, abs=1e-3)  # half of everything is of a label that the two lack


def test_a_slow_edge_is_kept_out_of_the_rings() -> None:
    """Members in a row: a ring over neighbours only would need the ends joined, so the groups are pairs at most."""
    problem = problem_of(7, 6)
    slow = problem.s_per_byte.copy()
    slow[0, 1] = slow[1, 0] = 1.0  # a byte a second
    found = search(Problem(**{**_fields(problem), "s_per_byte": slow}), Prices())
    for group in found.groups:
        pairs = set(zip(group.ring, (*group.ring[1:], group.ring[0]), strict=True))
        assert not pairs & {(0, 1), (1, 0)}


def test_labels_are_in_the_order_of_the_members() -> None:
    view = view_of(1, 5)
    labels = labels_of(1, view)
    problem = Problem.of(view, 0.1, 8, dict(reversed(labels.items())))
    assert problem.labels.tolist() == [labels[name] for name in view.names]


def _fields(problem: Problem) -> dict[str, object]:
    return {name: getattr(problem, name) for name in Problem.__slots__}
