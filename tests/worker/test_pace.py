"""Pacing: to the absolute moment, and late when the step took longer."""

from __future__ import annotations

import pytest

from testbed.worker.pace import Pace, Paced

pytestmark = pytest.mark.pure


class Time:
    """A clock whose sleeps overshoot."""

    def __init__(self) -> None:
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds + 0.001


def test_a_step_ends_when_it_is_declared_to() -> None:
    time = Time()
    pace = Pace(0.5, lambda: time.now, time.sleep)
    for _ in range(3):
        began = time.now
        pace.begin()
        time.now += 0.2
        assert pace.reach() == Paced(pytest.approx(0.3), 0.0)
        assert time.now == pytest.approx(began + 0.501)


def test_a_step_that_took_longer_is_late() -> None:
    time = Time()
    pace = Pace(0.5, lambda: time.now, time.sleep)
    pace.begin()
    time.now += 0.75
    assert pace.reach() == Paced(0.0, pytest.approx(0.25))


def test_what_is_aside_belongs_to_no_step() -> None:
    time = Time()
    pace = Pace(0.5, lambda: time.now, time.sleep)
    time.now += 0.1
    with pace.aside():
        time.now += 7
    time.now += 0.1
    assert pace.reach() == Paced(pytest.approx(0.3), 0.0)


def test_undeclared_steps_never_sleep() -> None:
    time = Time()
    pace = Pace(0.0, lambda: time.now, time.sleep)
    time.now += 3
    assert pace.reach() == Paced(0.0, 0.0)
