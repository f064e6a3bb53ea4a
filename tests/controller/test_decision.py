from __future__ import annotations

from dataclasses import replace

import pytest

from testbed.controller.decision import Rules, Standing, decide, usual
from testbed.plan import Plan, Tree
from testbed.planning import View
from tests.planning.networks import sites, view_of

pytestmark = pytest.mark.unit

RULES = Rules(margin=0.1, dwell_rounds=3)
SETTLED = Standing(rounds=10)


def triangle(direct: float) -> tuple[View, Plan, Plan]:
    """Two sites joined at `direct` Mbit/s and over a third at 40; the plan of the link between them, and the other."""
    view = view_of(sites(("a", "b", direct), ("a", "c", 40), ("c", "b", 40)), {}, 4_000_000, "measured")
    short, around = {"a-w0": "b-w0", "c-w0": "b-w0"}, {"a-w0": "c-w0", "c-w0": "b-w0"}
    plans = [Plan(0, view.names, (Tree("b-w0", ways, ways),)) for ways in (short, around)]
    return view, plans[0], plans[1]


def test_a_large_saving_is_taken_at_once_and_a_small_one_when_it_shows_again() -> None:
    view, current, better = triangle(10)
    assert decide(current, better, view, SETTLED, RULES, False).adopt
    view, current, better = triangle(34)
    first = decide(current, better, view, SETTLED, RULES, False)
    assert not first.adopt and first.promising and "first time" in first.why
    assert decide(current, better, view, Standing(11, promising=first.promising), RULES, False).adopt


def test_a_small_saving_is_taken_at_once_when_rounds_have_become_longer() -> None:
    view, current, better = triangle(34)
    slower = Standing(10, last_s=2.0, usual_s=1.6)
    assert decide(current, better, view, slower, RULES, False).adopt
    assert not decide(current, better, view, replace(slower, usual_s=1.8), RULES, False).adopt


def test_rounds_are_as_usual_before_the_last_ones() -> None:
    assert usual([]) is None and usual([1.0]) is None
    assert usual([9.0, 1.0, 1.2, 1.1, 4.0, 5.0]) == pytest.approx(1.15)


def test_what_saves_too_little_is_not_taken_however_often_it_shows() -> None:
    view, current, better = triangle(39)
    decision = decide(current, better, view, Standing(10, promising=True), RULES, False)
    assert not decision.adopt and not decision.promising


def test_a_plan_stands_for_the_dwell_unless_the_network_was_changed() -> None:
    view, current, better = triangle(10)
    young = decide(current, better, view, Standing(2), RULES, False)
    assert not young.adopt and "2 of 3" in young.why
    assert decide(current, better, view, Standing(2), RULES, True).adopt


def test_rounds_that_are_quicker_than_the_view_has_it_speak_for_the_plan_in_force() -> None:
    view, current, other = triangle(10)
    predicted = decide(current, other, view, SETTLED, RULES, False)
    assert predicted.current_s is not None and predicted.proposed_s < predicted.current_s / 2
    quick = Standing(10, last_s=predicted.proposed_s)
    assert not decide(current, other, view, quick, RULES, False).adopt
    assert decide(current, other, view, quick, RULES, True).adopt  # those were rounds over another network


def test_a_policy_s_own_measure_decides_instead_of_rounds() -> None:
    """What rounds took says nothing of it."""
    view, current, worse = triangle(100)
    costs = {current.shape().dumps(): 2.0, worse.shape().dumps(): 1.0}
    quick = Standing(10, last_s=1e-3)
    decision = decide(current, worse, view, quick, RULES, False, lambda _, plan: costs[plan.shape().dumps()])
    assert decision.adopt and (decision.current_s, decision.proposed_s) == (2.0, 1.0)
    assert "of a step" in decision.why
