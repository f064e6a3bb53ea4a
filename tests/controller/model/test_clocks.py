"""Moments of a clock that is set, in the order in which they were."""

from __future__ import annotations

import pytest

from testbed.controller.model.clocks import UnixClock

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("step_s", [-3600.0, -5.0, 0.0, 5.0, 3600.0])
def test_moments_before_and_after_a_step_keep_their_order(step_s: float) -> None:
    clock = UnixClock(1000.0, 0.0)
    assert clock.moment(1009.5, 1010.0, 10.0) == 9.5
    assert clock.moment(1010.5, 1011.0 + step_s, 11.0) == 10.5  # said before the step, and heard after it
    assert clock.moment(1011.5 + step_s, 1012.0 + step_s, 12.0) == 11.5


def test_nothing_that_was_heard_is_later_than_now() -> None:
    assert UnixClock(1000.0, 0.0).moment(5000.0, 1010.0, 10.0) == 10.0


def test_a_clock_that_is_slewed_is_not_taken_for_set() -> None:
    clock = UnixClock(1000.0, 0.0)
    assert clock.moment(1100.0, 1100.1, 100.0) == 100.0
