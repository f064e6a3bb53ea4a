"""The past rates of a link, and how much they vary."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.telemetry.estimate import LEAST, Estimate
from testbed.telemetry.rate_history import (
    KEPT_ESTIMATES,
    KEPT_SAMPLES,
    LEAST_ESTIMATES,
    PastRate,
    RateHistory,
    RateVariation,
)
from testbed.telemetry.trains import Sample

pytestmark = pytest.mark.pure


def history(*rates: tuple[float, float]) -> RateHistory:
    """Return the history of samples of 10 ms, each with its beginning and its rate."""
    found = RateHistory()
    found.add(Sample(rate, at_s, 0.01, 20_000, True) for at_s, rate in rates)
    return found


def past(found: RateHistory, began_s: float, ended_s: float) -> PastRate:
    rate = found.between(began_s, ended_s)
    assert rate is not None
    return rate


def test_a_stretch_has_the_rate_of_its_own_samples() -> None:
    found = history(*((at / 10, 10.0 if at < 50 else 5.0) for at in range(100)))
    assert past(found, 2.0, 4.0) == PastRate(10.0, 10.0, 10.0, known=True)
    assert past(found, 6.0, 8.0) == PastRate(5.0, 5.0, 5.0, known=True)


def test_a_step_within_a_stretch_shows() -> None:
    found = history(*((at / 10, 10.0 if at < 50 else 5.0) for at in range(100)))
    step = past(found, 4.0, 6.0)
    assert (step.low_bps, step.high_bps) == (5.0, 10.0)


def test_what_came_later_tells_of_a_stretch_in_which_nothing_filled_the_link() -> None:
    before = [(0.0, 18.0), (0.1, 18.2), (0.2, 17.9)]
    assert not past(history(*before), 2.0, 3.0).known
    later = past(history(*before, (5.0, 18.1)), 2.0, 3.0)
    assert later.known and later.rate_bps == pytest.approx(18.05)
    fallen = past(history(*before, (5.0, 4.0)), 2.0, 3.0)
    assert fallen.known and fallen.low_bps == 4.0


def test_of_a_link_that_nothing_filled_nothing_is_known() -> None:
    found = RateHistory()
    found.add([Sample(10.0, 1.0, 0.01, 20_000, False)])
    assert found.between(0.0, 2.0) is None


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(1, 100)), min_size=1), st.floats(0, 100), st.floats(0, 10))
def test_a_rate_lies_among_its_samples_however_they_come(
    rates: list[tuple[float, float]], began_s: float, lasts_s: float
) -> None:
    one_by_one = RateHistory()
    for sample in rates:
        one_by_one.add([Sample(sample[1], sample[0], 0.01, 20_000, True)])
    found = past(one_by_one, began_s, began_s + lasts_s)
    assert found.low_bps <= found.high_bps
    assert min(rate for _, rate in rates) <= found.rate_bps <= max(rate for _, rate in rates)


def test_what_is_kept_is_bounded() -> None:
    found = history(*((float(at), 1.0) for at in range(KEPT_SAMPLES + LEAST)))
    assert not past(found, 0.0, 1.0).known  # its own samples are gone, and earlier ones too


def estimate(rate_bps: float, age_s: float = 0.1) -> Estimate:
    return Estimate(rate_bps, 0.9 * rate_bps, 1.1 * rate_bps, age_s, 0.5)


def after(rates: list[float], every_s: float = 2.0) -> RateVariation:
    found = RateVariation()
    for number, rate in enumerate(rates):
        found.add(estimate(rate), 100.0 + every_s * number)
    return found


@given(st.floats(1e5, 1e9), st.floats(0.05, 20), st.integers(LEAST_ESTIMATES, KEPT_ESTIMATES - 1))
def test_a_link_that_fell_or_rose_once_rests_at_its_new_rate(rate: float, factor: float, before: int) -> None:
    link = after([rate] * before + [rate * factor])
    assert link.spread == 0.0
    assert link.expected_bps(estimate(rate * factor)) == rate * factor


def test_of_a_rate_that_goes_up_and_down_all_the_while_what_it_was_like_counts_for_more_than_what_it_is() -> None:
    draw = random.Random(1)
    rates = [1e7 * math.exp(draw.gauss(0, 1)) for _ in range(KEPT_ESTIMATES)]
    link, usual = after(rates), math.exp(sum(map(math.log, rates)) / KEPT_ESTIMATES)
    assert link.spread > 0.5
    assert abs(math.log(link.expected_bps(estimate(1e8)) / usual)) < 0.2 * math.log(1e8 / usual)


def test_a_little_noise_moves_little() -> None:
    link = after([1e7, 1.02e7, 0.99e7, 1.01e7, 1e7])
    assert link.expected_bps(estimate(1.03e7)) == pytest.approx(1.03e7, rel=0.002)


def test_what_was_known_before_is_nothing_new() -> None:
    link = RateVariation()
    for number in range(10):
        link.add(estimate(1e6 if number % 2 else 1e7, age_s=float(number)), 100.0 + number)
    assert link.spread == 0.0


def test_few_say_nothing() -> None:
    assert after([1e6, 1e7, 1e6][: LEAST_ESTIMATES - 1]).spread == 0.0
