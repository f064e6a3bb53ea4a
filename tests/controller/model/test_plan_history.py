"""The plans of a run: their epochs, the pause that a swap made, and what is kept of old ones."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest

from testbed.controller.model.plan_history import COMPARED, Epochs, PlanHistory, pause_ms
from testbed.simulation.event_queue import SimulatedClocks
from tests.controller.plans import triangle

pytestmark = pytest.mark.pure


def ends(*wholes: float) -> list[float]:
    """When rounds finish that take so long, gaps included; the first one at 100 s."""
    return list(accumulate(wholes, initial=100.0))


def test_a_pause_is_the_excess_of_the_first_round_s_whole_time() -> None:
    assert pause_ms(ends(1, 2, 1, 1, 4), 5) == 3000.0
    assert pause_ms(ends(1, 2, 1, 1, 4, 9), 5) == 3000.0  # a later round's slowness is not its
    assert pause_ms(ends(1, 2, 1, 1, 4, 9), 5, 6) == 8000.0
    assert pause_ms(ends(1, 2, 1, 1, 0.5), 5) == 0.0
    # What is slower for good is no pause, but for what the first round took beyond it.
    assert pause_ms(ends(1, 1, 1, 1, 5, 4, 9, 4), 5) == 1000.0
    assert pause_ms(ends(1, 1, 1, 1, 5, 6, 0.5, 0.5), 5) == 4000.0


def test_a_swap_away_from_a_slow_network_is_compared_with_the_slow_rounds() -> None:
    assert pause_ms(ends(*[1.0] * 20, 5, 5, 3), 23) == 0.0
    assert pause_ms(ends(*[9.0] * 20, *[1.0] * COMPARED, 3), 20 + COMPARED + 1) == 2000.0


def test_too_little_to_compare_with_is_no_pause() -> None:
    assert pause_ms(ends(1, 1, 5), 3) is None
    assert pause_ms(ends(1, 1, 1, 5), 4) == 4000.0
    assert pause_ms([], 0) is None and pause_ms([5.0], 0) is None
    assert pause_ms(ends(1, 1, 1, 1), 5) is None  # it has not come yet


def test_members_are_known_of_the_plan_in_force_and_the_one_before(tmp_path: Path) -> None:
    _, plan, _ = triangle(10)
    plans = PlanHistory(tmp_path, SimulatedClocks(0.0))
    plans.begin(plan)
    for epoch in range(1, 5):
        plans.resume(plan.with_epoch(epoch), "a connection broke", after_round=epoch)
    assert [plans.members(epoch) is not None for epoch in range(5)] == [False, False, False, True, True]


def test_all_swaps_are_told_and_the_newest_keep_their_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.controller.model.plan_history.WHOLE_SWAPS", 2)
    _, plan, _ = triangle(10)
    plans = PlanHistory(tmp_path, SimulatedClocks(0.0))
    plans.begin(plan)
    for epoch in range(1, 6):
        plans.resume(plan.with_epoch(epoch), "a connection broke", after_round=epoch)
    assert [swap["epoch"] for swap in plans.swaps_to_json()] == [1, 2, 3, 4, 5]
    assert [swap.plan.epoch for swap in plans.swaps] == [4, 5]


def test_a_restarted_controller_goes_on_counting(tmp_path: Path) -> None:
    first = Epochs(tmp_path / "epochs.json")
    assert not first.resumed and first.newest == 0
    first.begin()
    assert [first.next(), first.next()] == [1, 2]
    again = Epochs(tmp_path / "epochs.json")
    assert again.resumed and again.newest == 2 and again.next() == 3
