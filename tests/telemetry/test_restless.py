from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.telemetry.estimate import Estimate
from testbed.telemetry.restless import KEPT, LEAST, Restless

pytestmark = pytest.mark.pure


def estimate(rate_bps: float, age_s: float = 0.1) -> Estimate:
    return Estimate(rate_bps, 0.9 * rate_bps, 1.1 * rate_bps, age_s, 0.5)


def after(rates: list[float], every_s: float = 2.0) -> Restless:
    found = Restless()
    for number, rate in enumerate(rates):
        found.add(estimate(rate), 100.0 + every_s * number)
    return found


@given(st.floats(1e5, 1e9), st.floats(0.05, 20), st.integers(LEAST, KEPT - 1))
def test_a_link_that_fell_or_rose_once_rests_at_its_new_rate(rate: float, factor: float, before: int) -> None:
    link = after([rate] * before + [rate * factor])
    assert link.spread == 0.0
    assert link.expected_bps(estimate(rate * factor)) == rate * factor


def test_of_a_rate_that_goes_up_and_down_all_the_while_what_it_was_like_counts_for_more_than_what_it_is() -> None:
    draw = random.Random(1)
    rates = [1e7 * math.exp(draw.gauss(0, 1)) for _ in range(KEPT)]
    link, usual = after(rates), math.exp(sum(map(math.log, rates)) / KEPT)
    assert link.spread > 0.5
    assert abs(math.log(link.expected_bps(estimate(1e8)) / usual)) < 0.2 * math.log(1e8 / usual)


def test_a_little_noise_moves_little() -> None:
    link = after([1e7, 1.02e7, 0.99e7, 1.01e7, 1e7])
    assert link.expected_bps(estimate(1.03e7)) == pytest.approx(1.03e7, rel=0.002)


def test_what_was_known_before_is_nothing_new() -> None:
    link = Restless()
    for number in range(10):
        link.add(estimate(1e6 if number % 2 else 1e7, age_s=float(number)), 100.0 + number)
    assert link.spread == 0.0


def test_few_say_nothing() -> None:
    assert after([1e6, 1e7, 1e6][: LEAST - 1]).spread == 0.0
