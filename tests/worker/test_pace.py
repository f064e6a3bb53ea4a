"""Pacing: to the absolute moment, and late when the step took longer."""

from __future__ import annotations

from collections import Counter

import pytest

from testbed.worker.pace import Pace, Paced, Slowness
from tests.worker.workloads import workload

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
    assert pace.reach() == Paced(0.0, pytest.approx(0.25), is_late=True)


@pytest.mark.parametrize(("factor", "took_s", "late"), [(6.0, 0.37, False), (6.0, 0.40, True), (1.0, 0.07, True)])
def test_a_step_is_late_by_its_own_declared_time(factor: float, took_s: float, late: bool) -> None:
    time = Time()
    pace = Pace(0.06, lambda: time.now, time.sleep)
    time.now += took_s
    assert pace.reach(factor).is_late is late


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


def test_nothing_declared_changes_nothing() -> None:
    assert {Slowness(workload()).factor(step, 7.0) for step in range(50)} == {1.0}


def test_steps_are_slow_at_random_and_the_same_ones_whatever_the_strategy() -> None:
    slow = {"slow_factor": 6.0, "slow_probability": 1 / 16}
    one = [Slowness(workload(**slow)).factor(step, 0.0) for step in range(4000)]
    assert one == [Slowness(workload(**slow)).factor(step, 9.0) for step in range(4000)]
    assert one != [Slowness(workload(**slow, shard=1)).factor(step, 0.0) for step in range(4000)]
    assert one != [Slowness(workload(**slow, seed=1)).factor(step, 0.0) for step in range(4000)]
    counted = Counter(one)
    assert counted.keys() == {1.0, 6.0}
    # 250 expected, a standard deviation of 15.3: five of them.
    assert abs(counted[6.0] - 250) < 77


def test_a_trace_of_speed_begins_again_at_its_end() -> None:
    slowness = Slowness(workload(speeds=[[0, 1], [20, 0.25], [30, 2]]))
    moments = {0: 1.0, 19.9: 1.0, 20: 4.0, 29.9: 4.0, 30: 1.0, 55: 4.0}
    assert {at: slowness.factor(1, at) for at in moments} == moments
