from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.controller.replanning.planner import BORROWED_S, RESERVE_S, SAVED_S, SHARE, ProcessorBudget, VainLook

pytestmark = pytest.mark.pure


@given(
    st.lists(
        st.tuples(st.floats(0, 20), st.floats(0.01, 3), st.sampled_from((RESERVE_S, 0.0, -BORROWED_S))), max_size=60
    )
)
def test_spending_stays_within_the_share_the_savings_and_what_is_borrowed(
    works: list[tuple[float, float, float]],
) -> None:
    """Only the last work may overdraw the budget, since its cost is known afterwards."""
    budget = ProcessorBudget()
    now_s, spent, last = 100.0, 0.0, 0.0
    for passed_s, costs_s, least_s in works:
        now_s += passed_s
        if budget.allows(now_s, least_s):
            assert spent <= SAVED_S + BORROWED_S + SHARE * (now_s - 100.0) + 1e-9
            budget.spend(costs_s)
            spent, last = spent + costs_s, costs_s
    assert spent <= SAVED_S + BORROWED_S + SHARE * (now_s - 100.0) + last + 1e-9


def test_quiet_times_save_up_the_budget_to_a_limit() -> None:
    budget = ProcessorBudget()
    assert budget.allows(0.0)
    budget.spend(SAVED_S)
    assert not budget.allows(0.0, 0.0)
    assert budget.allows(1.0, 0.0)
    assert budget.allows(10_000.0)
    budget.spend(SAVED_S)
    assert not budget.allows(10_000.0, 0.0)


def test_a_reserve_is_kept_for_urgent_work() -> None:
    budget = ProcessorBudget()
    assert budget.allows(0.0)
    budget.spend(SAVED_S - RESERVE_S)
    assert not budget.allows(0.0)
    assert budget.allows(0.0, 0.0)


def test_a_look_in_vain_is_repeated_when_the_round_is_much_longer_or_more_fell() -> None:
    """Six looks in the 1.5 s after a fall used up the budget, and rounds of 5 s went on for 18 s."""
    last = VainLook(rounds=4, fell={"a->b": 0.2}, until_s=1.9, rates_bps={}, unsure=False)
    assert not last.may_repeat(4, {"a->b": 0.2}, 1.8) and last.may_repeat(4, {"a->b": 0.2}, 1.9)
    assert not last.may_repeat(4, {"a->b": 0.18}, 0.5), "that is hardly less"
    assert last.may_repeat(4, {"a->b": 0.1}, 0.5) and last.may_repeat(4, {"a->b": 0.2, "b->a": 0.7}, 0.5)
    assert last.may_repeat(5, {"a->b": 0.2}, 0.1), "that is another round"


def test_after_a_look_in_vain_only_rates_that_changed_are_news() -> None:
    """Looks each 2 s over constant links left half of the budget for the moment in which all links changed."""
    last = VainLook(rounds=4, fell={}, until_s=1.9, rates_bps={"a->b": 8e6, "b->a": 4e6}, unsure=False)
    assert not last.is_outdated({"a->b": 9e6, "b->a": 3.5e6}) and not last.is_outdated({"a->b": 8e6})
    assert last.is_outdated({"a->b": 8e6, "b->a": 3e6}) and last.is_outdated({"a->b": 11e6})
    assert last.is_outdated({"a->b": 8e6, "b->c": 8e6}), "that link was not known"
    assert replace(last, unsure=True).is_outdated({})
