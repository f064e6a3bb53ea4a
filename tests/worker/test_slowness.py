from __future__ import annotations

from collections import Counter

import pytest

from testbed.worker.slowness import Slowness
from tests.worker.workloads import workload

pytestmark = pytest.mark.pure


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
