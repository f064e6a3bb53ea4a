"""Estimates of a link's rate: constant, stepping, noisy, and never full."""

from __future__ import annotations

import math
import random
from math import exp
from statistics import mean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.telemetry.bottleneck import Sample
from testbed.telemetry.estimate import (
    KEPT_ESTIMATES,
    KEPT_SAMPLES,
    LASTED_S,
    LEAST,
    LEAST_ESTIMATES,
    LEAST_SPREAD,
    OPEN,
    SILENCE_S,
    WINDOW,
    Estimate,
    PastRate,
    RateEstimator,
    RateHistory,
    RateVariation,
)

pytestmark = pytest.mark.pure

#: The seconds from one train to the next.
EVERY_S = 0.3
#: The trains after which an estimate is sure of another rate.
FEW = 3
DECLARED = 20e6

rates = st.floats(1e5, 1e9)
#: What holds of most series of trains is asked of these: a search for the worst one would find one that is worse.
SEEDS = range(20)


def train(number: int, rate_bps: float, full: bool = True, seconds: float = 0.2) -> Sample:
    return Sample(rate_bps, 100 + number * EVERY_S, seconds, 65_536, full)


def short(number: int, rate_bps: float) -> Sample:
    """Return a short train that did not fill the link."""
    return train(number, rate_bps, full=False, seconds=LASTED_S / 2)


def ended_s(number: int) -> float:
    return train(number, 1.0).ended_s


def noisy(rate_bps: float, chance: random.Random) -> float:
    """Return a train within 2 % of the rate; one of twelve is farther off."""
    return rate_bps * (chance.gauss(1, 0.01) if chance.random() < 11 / 12 else chance.choice((0.75, 1.1)))


def estimated(estimator: RateEstimator, now_s: float) -> Estimate:
    estimate = estimator.estimate(now_s)
    assert estimate is not None
    return estimate


def test_nothing_is_known_at_first_nor_of_fewer_trains_than_one_may_be_off_among() -> None:
    estimator = RateEstimator(DECLARED)
    for i in range(LEAST):
        assert estimator.estimate(ended_s(i)) is None
        estimator.add([train(i, 30e6)])
    assert estimated(estimator, ended_s(LEAST)).rate_bps == 30e6


@given(st.lists(rates, min_size=LEAST, max_size=60))
def test_an_estimate_lies_in_its_interval_and_a_known_one_among_the_newest_trains(its: list[float]) -> None:
    estimator = RateEstimator(DECLARED)
    estimator.add([train(i, rate) for i, rate in enumerate(its)])
    estimate = estimator.estimate(ended_s(len(its)))
    if estimate is None:
        return  # no two trains agree
    assert estimate.low_bps <= estimate.rate_bps <= estimate.high_bps
    if estimate.known:
        newest = its[-WINDOW:]
        assert min(newest) <= estimate.rate_bps * 1.000001 and estimate.rate_bps <= max(newest) * 1.000001
        assert estimate.low_bps <= estimate.rate_bps * (1 - LEAST_SPREAD)
        assert estimate.rate_bps * (1 + LEAST_SPREAD) <= estimate.high_bps
        assert estimate.over_s >= 0.19


@pytest.mark.parametrize("seed", SEEDS)
def test_a_constant_link_is_met_within_a_fiftieth_over_a_long_window(seed: int) -> None:
    chance = random.Random(seed)
    rate = 10 ** chance.uniform(5, 9)
    estimator = RateEstimator(DECLARED)
    seen = []
    for i in range(200):
        estimator.add([train(i, noisy(rate, chance))])
        if i + 1 >= LEAST:
            seen.append(estimated(estimator, ended_s(i)))
    settled = seen[FEW:]
    assert mean(each.low_bps <= rate <= each.high_bps for each in settled) >= 0.95
    assert median(abs(each.rate_bps / rate - 1) for each in settled) < 0.01
    assert mean(each.known for each in settled) >= 0.95


@given(st.integers(), rates, st.floats(1.3, 10), st.booleans())
def test_after_a_step_a_few_trains_are_enough(seed: int, rate: float, factor: float, down: bool) -> None:
    chance = random.Random(seed)
    estimator = RateEstimator(DECLARED)
    before = rate * factor if down else rate / factor
    for i in range(20):
        estimator.add([train(i, noisy(before, chance))])
    for i in range(FEW + 1):  # a small step down takes one train more, since trains are often a little late
        estimator.add([train(20 + i, rate * chance.gauss(1, 0.01))])
    estimate = estimated(estimator, ended_s(20 + FEW))
    assert estimate.known
    assert estimate.rate_bps == pytest.approx(rate, rel=0.05)
    assert estimate.over_s <= (FEW + 1) * EVERY_S  # without earlier trains


def test_slow_trains_that_do_not_agree_with_each_other_are_no_fall() -> None:
    """A busy host delays every second train, each by another time."""
    off = []
    for seed in SEEDS:
        chance = random.Random(seed)
        rate = 10 ** chance.uniform(5, 9)
        estimator = RateEstimator(DECLARED)
        for i in range(100):
            held_up = chance.random() < 0.5
            estimator.add([train(i, noisy(rate, chance) * (exp(-chance.uniform(0.1, 2.5)) if held_up else 1.0))])
            estimate = estimator.estimate(ended_s(i))
            if i >= 20 and estimate is not None and estimate.known:
                off.append(estimate.rate_bps / rate - 1)
    assert len(off) > 40 * len(SEEDS)
    assert mean(error < -0.33 for error in off) <= 0.02
    assert median(map(abs, off)) < 0.01


def test_a_fall_is_believed_of_two_trains_and_certain_of_three() -> None:
    estimator = RateEstimator(DECLARED)
    estimator.add([train(i, 30e6) for i in range(20)])
    for count, known, rate_bps in ((1, True, 30e6), (2, False, 5e6), (3, True, 5e6)):
        estimator.add([train(19 + count, 5e6)])
        estimate = estimated(estimator, ended_s(19 + count))
        assert (estimate.known, estimate.rate_bps) == (known, rate_bps)


def test_few_trains_after_a_silence_are_not_mixed_with_those_before_it() -> None:
    """A train of 17.6 Mbit/s after trains of 2 and 6 that were 20 s old once made an estimate of 6.2."""
    estimator = RateEstimator(DECLARED)
    estimator.add([train(0, 2e6), train(1, 4e6), train(2, 6.2e6)])
    estimator.add([train(70, 17.6e6)])
    estimate = estimator.estimate(ended_s(70))
    assert estimate is None or not estimate.known


def test_one_train_contradicts_an_estimate_until_another_one_proves_more() -> None:
    def contradicted(*newest: Sample) -> bool:
        estimator = RateEstimator(DECLARED)
        assert not estimator.contradicted
        estimator.add([*(train(number, 20e6) for number in range(5)), *newest])
        return estimator.contradicted

    assert not contradicted() and not contradicted(train(5, 19e6))
    assert contradicted(train(5, 10e6)) and contradicted(train(5, 40e6, full=False))
    assert contradicted(train(5, 10e6), train(6, 8e6, full=False))
    assert not contradicted(train(5, 10e6), train(6, 19e6, full=False))
    assert contradicted(train(5, 40e6, full=False), train(6, 8e6, full=False)), "a slow train proves nothing"


def test_trains_since_a_time_prove_that_a_link_carries_more() -> None:
    estimator = RateEstimator(DECLARED)
    estimator.add([train(0, 20e6), train(1, 20e6, full=False), train(2, 8e6, full=False)])
    assert estimator.exceeds(10e6, since_s=train(1, 1.0).began_s)
    assert not estimator.exceeds(10e6, since_s=ended_s(1)), "the train came before that time"
    assert not estimator.exceeds(19e6, since_s=0.0), "the train was hardly faster"


def test_one_train_that_is_off_changes_nothing() -> None:
    estimator = RateEstimator(DECLARED)
    for i in range(WINDOW):
        estimator.add([train(i, 50e6)])
    before = estimated(estimator, 200.0)
    estimator.add([train(WINDOW, 5e6)])
    assert estimated(estimator, 200.0).rate_bps == before.rate_bps


@pytest.mark.parametrize("trains", [LEAST, WINDOW])
def test_trains_count_although_the_clock_was_set_back_since_the_rate_moved(trains: int) -> None:
    estimator = RateEstimator(DECLARED)
    estimator.add([train(i, 30e6) for i in range(20)])
    for i in range(20, 20 + LEAST):
        estimator.add([train(i, 10e6)])
    for i in range(-100, trains - 100):
        estimator.add([train(i, 10e6)])
    estimate = estimated(estimator, ended_s(trains - 101))
    assert estimate.known and estimate.rate_bps == 10e6
    assert 0 < estimate.over_s <= trains * EVERY_S


def test_what_never_filled_a_link_says_what_it_carries_at_least_and_it_stays_unknown() -> None:
    estimator = RateEstimator(DECLARED)
    estimator.add([short(i, DECLARED / 2) for i in range(3)])
    assert estimator.estimate(200.0) is None  # nothing new
    estimator.add([short(i, rate) for i, rate in enumerate((40e6, 50e6, 60e6))])
    estimate = estimated(estimator, ended_s(2))
    assert not estimate.known
    assert 35e6 <= estimate.rate_bps <= 60e6 and estimate.high_bps == pytest.approx(OPEN * estimate.rate_bps)


def test_trains_that_carried_more_without_filling_a_link_raise_an_estimate() -> None:
    estimator = RateEstimator(DECLARED)
    estimator.add([train(i, 40e6) for i in range(8)])
    estimator.add([short(8, 50e6)])
    assert estimated(estimator, ended_s(8)).rate_bps == 40e6
    estimator.add([short(9 + i, 50e6) for i in range(3)])
    raised = estimated(estimator, ended_s(11))
    assert 43e6 <= raised.rate_bps <= 50e6 and raised.high_bps > 100e6 and not raised.known
    estimator.add([train(20 + i, 55e6) for i in range(FEW)])  # until it is measured
    assert estimated(estimator, ended_s(30)).rate_bps == 55e6


def test_short_trains_that_late_stamps_make_look_faster_raise_nothing() -> None:
    estimator = RateEstimator(DECLARED)
    estimator.add([train(i, 200e6) for i in range(8)])
    estimator.add([train(8 + i, 1.14 * 200e6, full=False, seconds=0.02) for i in range(3)])
    assert estimated(estimator, ended_s(10)).rate_bps == 200e6
    estimator.add([train(11 + i, 1.5 * 200e6, full=False, seconds=0.02) for i in range(3)])
    assert estimated(estimator, ended_s(13)).rate_bps > 1.2 * 200e6


@pytest.mark.parametrize("slower", [[], [12e6] * 4, [15e6]])
def test_short_trains_that_agree_on_more_count_beside_slower_ones(slower: list[float]) -> None:
    """A probe came at 23.5 Mbit/s, and the estimate stayed at the 14 of TCP's longer trains for 4 s."""
    estimator = RateEstimator(DECLARED)
    estimator.add([train(i, 7e6) for i in range(5)])
    estimator.add([train(5 + i, rate_bps, full=False) for i, rate_bps in enumerate(slower)])
    estimator.add([short(10 + i, 23.5e6) for i in range(3)])
    assert estimated(estimator, ended_s(12)).rate_bps == 23.5e6


def test_a_single_train_that_lasted_says_so_too_whatever_slower_ones_come_after_it() -> None:
    """A probe over a link that recovered is such a train, while the plan's own transfers are still slow."""
    estimator = RateEstimator(DECLARED)
    estimator.add([train(i, 3e6) for i in range(8)])
    estimator.add([train(9, 20e6, full=False), *(short(10 + i, 5e6) for i in range(3))])
    raised = estimated(estimator, ended_s(20))
    assert raised.rate_bps == pytest.approx(20e6, rel=0.1) and not raised.known


def test_what_did_not_fill_a_link_makes_an_estimate_no_younger() -> None:
    """The link may carry more by now."""
    estimator = RateEstimator(DECLARED)
    estimator.add([train(i, 40e6) for i in range(8)])
    estimator.add([train(20, 40e6, full=False)])
    assert estimated(estimator, ended_s(20)).age_s == pytest.approx(ended_s(20) - ended_s(7))


def test_confidence_decays_and_the_time_before_a_silence_is_not_looked_at() -> None:
    estimator = RateEstimator(DECLARED)
    estimator.add([train(0, 50e6)] * LEAST)
    fresh, old = estimated(estimator, ended_s(0)), estimated(estimator, ended_s(0) + 2 * SILENCE_S)
    assert fresh.known and not old.known
    assert fresh.confidence == 1.0 and old.confidence == pytest.approx(0.25)
    estimator.add([train(1000, 51e6)] * FEW)
    assert estimated(estimator, ended_s(1000)).over_s == pytest.approx(0.2)


def test_it_is_written_with_all_that_it_says() -> None:
    assert Estimate(50e6, 48e6, 52e6, 10.0, 1.5).to_json() == {
        **{"rate_bps": 50_000_000, "low_bps": 48_000_000, "high_bps": 52_000_000},
        **{"age_s": 10.0, "over_s": 1.5, "confidence": 0.5},
    }


@given(st.lists(st.tuples(rates, st.floats(1e-3, 60.0)), min_size=LEAST, max_size=40))
def test_trains_may_last_longer_than_any_window(its: list[tuple[float, float]]) -> None:
    """A train over a very slow link takes many seconds."""
    estimator, at_s = RateEstimator(DECLARED), 100.0
    for rate, seconds in its:
        estimator.add([Sample(rate, at_s, seconds, 65_536, True)])
        at_s += seconds + EVERY_S
    found = estimator.estimate(at_s)
    assert found is None or found.low_bps <= found.rate_bps <= found.high_bps


def test_trains_that_last_longer_than_any_window_move_the_rate() -> None:
    estimator = RateEstimator(DECLARED)
    estimator.add([train(i, 30e6) for i in range(WINDOW)])
    slow_s, lasts_s = ended_s(WINDOW), 2 * SILENCE_S
    for number in range(FEW):
        estimator.add([Sample(2e6, slow_s + lasts_s * number, lasts_s, 65_536, True)])
    assert estimated(estimator, slow_s + lasts_s * FEW).rate_bps == pytest.approx(2e6)


@pytest.mark.parametrize("silence_s", [3600.0, 10_451.0, 86_400.0, 30 * 86_400.0])
def test_a_link_that_was_silent_for_hours_is_estimated_from_what_comes_then(silence_s: float) -> None:
    estimator = RateEstimator(DECLARED)
    estimator.add([train(i, 30e6) for i in range(FEW)])
    estimator.add([Sample(5e6, ended_s(FEW) + silence_s + EVERY_S * i, 0.2, 65_536, True) for i in range(FEW)])
    assert estimated(estimator, ended_s(FEW) + silence_s + EVERY_S * FEW).rate_bps == pytest.approx(5e6, rel=0.02)


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
