from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.protocol import PeerSample
from testbed.telemetry.estimate import EdgeEstimator

pytestmark = pytest.mark.unit


def sample(mbps: float, rtt_s: float = 0.1) -> PeerSample:
    """A megabyte of payload at so many Mbit/s of frames."""
    return PeerSample("b", 1_000_000, 8 / (mbps * 1448 / 1514), rtt_s, 0)


def estimated(estimator: EdgeEstimator, now_s: float) -> float:
    estimate = estimator.estimate(now_s)
    assert estimate is not None
    return estimate.rate_bps / 1e6


def test_nothing_is_known_at_first() -> None:
    assert EdgeEstimator().estimate(0.0) is None


@given(st.lists(st.floats(40, 60), min_size=1, max_size=50))
def test_an_estimate_lies_among_its_samples(rates: list[float]) -> None:
    estimator = EdgeEstimator()
    for i, rate in enumerate(rates):
        estimator.add(sample(rate), i)
    assert min(rates) - 1e-6 <= estimated(estimator, len(rates)) <= max(rates) + 1e-6


def test_a_single_outlier_changes_nothing_and_two_are_followed_at_once() -> None:
    estimator = EdgeEstimator()
    for i in range(5):
        estimator.add(sample(50), i)
    estimator.add(sample(10), 5)
    assert estimated(estimator, 5) == pytest.approx(50)
    estimator.add(sample(12), 6)
    assert estimated(estimator, 6) == pytest.approx(11)


def test_outliers_on_both_sides_are_noise() -> None:
    estimator = EdgeEstimator()
    for i, rate in enumerate((50, 10, 200, 10, 200)):
        estimator.add(sample(rate), i)
    assert estimated(estimator, 5) == pytest.approx(50)


def test_it_ages_and_is_unknown_after_silence() -> None:
    estimator = EdgeEstimator(silence_s=10)
    estimator.add(sample(50), 100.0)
    assert estimator.estimate(104.0).age_s == 4.0
    assert estimator.estimate(111.0) is None
    estimator.add(sample(5, rtt_s=0.3), 120.0)  # the time before is forgotten
    assert estimated(estimator, 120.0) == pytest.approx(5)
    assert estimator.estimate(120.0).rtt_s == 0.3


def test_the_round_trip_is_the_least_of_the_last_ten() -> None:
    estimator = EdgeEstimator()
    for i, rtt in enumerate([0.05, *[0.2] * 9]):
        estimator.add(sample(50, rtt), i)
    assert estimator.estimate(10).rtt_s == 0.05
    estimator.add(sample(50, 0.2), 10)
    assert estimator.estimate(10).rtt_s == 0.2


def test_a_sample_that_was_never_busy_says_nothing() -> None:
    estimator = EdgeEstimator()
    estimator.add(PeerSample("b", 0, 0.0, 0.1, 0), 1.0)
    assert estimator.estimate(1.0) is None
