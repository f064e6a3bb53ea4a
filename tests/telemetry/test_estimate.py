from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.telemetry.estimate import CHANGE, QUANTILE, ROUNDS, SILENCE_S, STEADY, Estimate, RateEstimator, quantile

pytestmark = pytest.mark.unit


def estimated(estimator: RateEstimator, now_s: float) -> float:
    estimate = estimator.estimate(now_s)
    assert estimate is not None
    return estimate.rate_bps


def trains(rate: float, chance: random.Random) -> list[float]:
    """Trains over a link of `rate`: mostly full, some not, some a burst of acknowledgements."""
    return [rate * chance.choice((0.6, 0.85, 0.95, 0.98, 1.0, 1.0, 1.02, 1.05)) for _ in range(12)]


def test_nothing_is_known_at_first() -> None:
    assert RateEstimator().estimate(0.0) is None


@given(st.lists(st.lists(st.floats(1e6, 1e9), min_size=1, max_size=20), min_size=1, max_size=30))
def test_an_estimate_lies_among_the_trains_of_the_last_rounds(rounds: list[list[float]]) -> None:
    estimator = RateEstimator()
    for i, rates in enumerate(rounds):
        estimator.add(rates, i)
    recent = [rate for rates in rounds[-ROUNDS:] for rate in rates]
    assert min(recent) * (1 - STEADY) <= estimated(estimator, len(rounds)) <= max(recent) * (1 + STEADY) ** 2


@given(st.integers(), st.floats(1e5, 1e9))
def test_a_constant_link_is_met_within_a_tenth_and_the_estimate_settles(seed: int, rate: float) -> None:
    chance = random.Random(seed)
    estimator = RateEstimator()
    shown = []
    for i in range(40):
        estimator.add(trains(rate, chance), i)
        shown.append(estimated(estimator, i))
    assert all(abs(each / rate - 1) < 0.1 for each in shown[4:])
    assert len(set(shown[10:])) <= 3


@given(st.integers(), st.floats(1.4, 10), st.booleans())
def test_a_step_shows_within_two_rounds(seed: int, factor: float, down: bool) -> None:
    chance = random.Random(seed)
    estimator = RateEstimator()
    for i in range(10):
        estimator.add(trains(50e6, chance), i)
    rate = 50e6 / factor if down else 50e6 * factor
    for i in (10, 11):
        estimator.add(trains(rate, chance), i)
    assert estimated(estimator, 11) == pytest.approx(rate, rel=0.15)


def test_one_round_that_is_off_is_held_for_noise_and_a_second_one_is_not() -> None:
    estimator = RateEstimator()
    for i in range(ROUNDS):
        estimator.add([50e6] * 5, i)
    estimator.add([50e6 * CHANGE * 1.05] * 5, ROUNDS)
    assert estimated(estimator, ROUNDS) == 50e6
    estimator.add([50e6 * CHANGE * 1.1] * 5, ROUNDS + 1)
    assert estimated(estimator, ROUNDS + 1) == pytest.approx(50e6 * CHANGE * 1.1)


def test_what_was_exceeded_is_raised_and_is_known_only_if_it_was_measured() -> None:
    unmeasured = RateEstimator()
    unmeasured.exceed([50e6], 100.0)
    assert estimated(unmeasured, 100.0) == 50e6
    assert not unmeasured.estimate(100.0).known
    measured = RateEstimator()
    measured.add([40e6], 100.0)
    measured.exceed([30e6], 101.0)
    assert measured.estimate(101.0) == Estimate(40e6, 1.0)
    measured.exceed([50e6], 102.0)
    assert measured.estimate(102.0) == Estimate(50e6, 2.0)


def test_confidence_decays_and_after_silence_the_time_before_is_forgotten() -> None:
    estimator = RateEstimator()
    estimator.add([50e6], 100.0)
    fresh, old = estimator.estimate(101.0), estimator.estimate(100.0 + 2 * SILENCE_S)
    assert fresh is not None and old is not None
    assert fresh.known and not old.known
    assert fresh.confidence > 0.9 > 0.3 > old.confidence and old.confidence == pytest.approx(0.25)
    estimator.add([48e6], 100.0 + 3 * SILENCE_S)
    assert estimator.estimate(100.0 + 3 * SILENCE_S) == Estimate(50e6, 0.0)  # no more than STEADY off: it stays
    estimator.add([20e6], 100.0 + 5 * SILENCE_S)
    assert estimated(estimator, 200.0) == 20e6


def test_what_carried_nothing_says_nothing() -> None:
    estimator = RateEstimator()
    estimator.add([0.0], 1.0)
    assert estimator.estimate(1.0) is None


def test_the_quantile_of_a_few_is_one_of_them() -> None:
    assert quantile([3.0]) == 3.0
    assert quantile([float(i) for i in range(10)]) == 10 * QUANTILE
