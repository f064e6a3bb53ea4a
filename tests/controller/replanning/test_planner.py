from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.controller.replanning.planner import RESERVE_S, SAVED_S, SHARE, ProcessorBudget

pytestmark = pytest.mark.pure


@given(st.lists(st.tuples(st.floats(0, 20), st.floats(0.01, 3), st.booleans()), max_size=60))
def test_no_more_is_spent_than_the_share_and_what_was_saved(looks: list[tuple[float, float, bool]]) -> None:
    """But for what the last one took: that is known afterwards."""
    budget = ProcessorBudget()
    now_s, spent, last = 100.0, 0.0, 0.0
    for passed_s, costs_s, urgent in looks:
        now_s += passed_s
        if budget.allows(now_s, urgent):
            assert spent <= SAVED_S + SHARE * (now_s - 100.0) + 1e-9
            budget.spend(costs_s)
            spent, last = spent + costs_s, costs_s
    assert spent <= SAVED_S + SHARE * (now_s - 100.0) + last + 1e-9


def test_it_is_saved_up_in_quiet_times_but_not_without_end() -> None:
    budget = ProcessorBudget()
    assert budget.allows(0.0)
    budget.spend(SAVED_S)
    assert not budget.allows(0.0, urgent=True)
    assert budget.allows(1.0, urgent=True)
    assert budget.allows(10_000.0)
    budget.spend(SAVED_S)
    assert not budget.allows(10_000.0, urgent=True)


def test_some_is_kept_for_what_is_urgent() -> None:
    budget = ProcessorBudget()
    assert budget.allows(0.0)
    budget.spend(SAVED_S - RESERVE_S)
    assert not budget.allows(0.0)
    assert budget.allows(0.0, urgent=True)
