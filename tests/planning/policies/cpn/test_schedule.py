"""Periods, phases, and the cost J term by term against figures worked out by hand."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.planning.policies.cpn import Costs, Prices, Problem, Terms, schedule
from testbed.planning.policies.cpn.schedule import BESIDE, PERIODS, least_cost, phases_of
from tests.planning.policies.cpn.exhaustive import cost_of

pytestmark = pytest.mark.pure


def group(round_s: float, exchange_s: float, steps: float = 1.0, number: int = 0) -> Terms:
    return Terms((number,), (number,), frozenset([number]), round_s, 0.0, 0.0, exchange_s, steps, 0.0)


@given(st.lists(st.sampled_from([1, 2, 4, 8, 16, 32]), min_size=1, max_size=12))
def test_no_two_groups_meet_while_there_is_room(periods: list[int]) -> None:
    phases = phases_of(periods)
    rounds = Counter(
        number
        for period, phase in zip(periods, phases, strict=True)
        for number in range(max(periods))
        if number % period == phase
    )
    assert all(0 <= phase < period for period, phase in zip(periods, phases, strict=True))
    assert max(rounds.values()) == np.ceil(sum(1 / period for period in periods))


def test_a_round_by_hand() -> None:
    """Two members: 8 and 4 steps of 0.1 and 0.2 s, 10 MB over 100 and 50 MB/s, 40 ms there and back."""
    problem = Problem(
        names=("a", "b"),
        sites=np.array([0, 1]),
        model_bytes=10e6,
        s_per_byte=np.array([[0, 1e-8], [2e-8, 0]]),
        rtt_s=np.array([[0, 0.04], [0.04, 0]]),
        step_s=np.array([0.1, 0.2]),
        steps=np.array([8, 4]),
        weights=np.array([0.75, 0.25]),
        labels=np.array([[3.0, 0.0], [0.0, 1.0]]),
    )
    together = Costs(problem).of((0, 1))
    assert together.round_s == pytest.approx(0.8 + 2 * (0.02 + 10e6 / 2 * 2e-8))
    assert together.steps == pytest.approx(0.75 * 8 + 0.25 * 4)
    assert (together.exchange_s, together.skew) == (0, pytest.approx(0))
    alone = Costs(problem).of((0,))
    assert (alone.round_s, alone.exchange_s) == (pytest.approx(0.8), pytest.approx(0.04 + 0.1 + 0.2))
    middle = np.array([0.875, 0.125])
    towards = 0.75 * np.log2(0.75 / middle[0]) + 0.25 * np.log2(0.25 / middle[1])
    assert alone.skew == pytest.approx((np.log2(1 / middle[0]) + towards) / 2)


def test_the_cost_by_hand() -> None:
    when = schedule([group(1.0, 3.0), group(2.0, 2.0)], Prices(skew=0, stale=0.1, drift=0.0))
    assert when.periods == (4, 32)  # nothing is paid for long periods; the first only keeps below the second's
    assert when.cost == pytest.approx((2 + 2 / 32) * (1 + 0.1 * (3 + 1) / 2))


@given(st.lists(st.tuples(st.floats(0.1, 3.0), st.floats(0.1, 30.0), st.integers(1, 8)), min_size=2, max_size=6))
def test_no_other_period_of_one_group_is_better(figures: list[tuple[float, float, int]]) -> None:
    groups = [group(round_s, exchange_s, steps, i) for i, (round_s, exchange_s, steps) in enumerate(figures)]
    when = schedule(groups, Prices())
    assert when.cost <= least_cost(groups, Prices()) * (1 + 1e-9)
    assert when.cost == pytest.approx(cost_of(groups, Prices(), when.periods))
    for k, period in enumerate(when.periods):
        for other in (period // 2, 2 * period):
            if PERIODS[0] <= other <= PERIODS[-1]:
                periods = (*when.periods[:k], other, *when.periods[k + 1 :])
                assert cost_of(groups, Prices(), periods) >= when.cost * (1 - 1e-9)


def test_dear_drift_makes_periods_short_and_dear_exchanges_make_them_long() -> None:
    groups = [group(1.0, 5.0, number=i) for i in range(3)]
    assert max(schedule(groups, Prices(drift=1.0)).periods) < min(schedule(groups, Prices(drift=0.001)).periods)


def test_without_phases_all_exchange_at_once_in_both_directions_at_a_time() -> None:
    groups = [group(1.0, 5.0, number=i) for i in range(4)]
    staggered, at_once = (schedule(groups, Prices(), temporal) for temporal in (True, False))
    assert len(set(at_once.periods)) == 1 and set(at_once.phases) == {0}
    period = at_once.periods[0]
    assert at_once.step_s == pytest.approx([(1 + BESIDE) * (1.0 + 5.0 / 2 / period)] * 4)
    assert len(set(staggered.phases)) == 4
