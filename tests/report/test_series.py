"""Rates of links as step functions, and the errors of estimates."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.report.record import RunRecord
from testbed.report.run_files import LinkRecord, TrafficRecord
from testbed.report.series import (
    StepFunction,
    arrived,
    backlogged,
    down_spans,
    estimate_errors,
    estimated,
    rate_in_force,
)
from testbed.telemetry.estimate import SILENCE_S
from tests.report.runs import ZERO_S, build_run

pytestmark = pytest.mark.pure

A = "a->b"


def _sample(at: float, count: int | None, busy: float = 0.0) -> TrafficRecord:
    return TrafficRecord(at, {} if count is None else {A: count}, {} if count is None else {A: busy}, 0.5, {}, {})


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=2000), st.integers(4, 200))
def test_thinning_keeps_span_and_extremes(values: list[float], limit: int) -> None:
    steps = StepFunction(np.arange(len(values) + 1.0), np.array(values))
    thin = steps.thinned(limit)
    assert len(thin.values) <= max(limit, len(values) if len(values) <= limit else 0)
    assert (thin.edges[0], thin.edges[-1]) == (steps.edges[0], steps.edges[-1])
    assert np.all(np.diff(thin.edges) > 0)
    assert (thin.values.min(), thin.values.max()) == (min(values), max(values))


def test_thinning_keeps_holes() -> None:
    values = np.ones(1000)
    values[200:400] = np.nan
    thin = StepFunction(np.arange(1001.0), values).thinned(100)
    assert np.diff(thin.edges)[np.isnan(thin.values)].sum() == pytest.approx(200, abs=40)


def test_means_weigh_by_time() -> None:
    steps = StepFunction(np.array([0.0, 1.0, 4.0]), np.array([10.0, 2.0]))
    assert steps.mean(0, 4) == pytest.approx(4.0)
    assert steps.mean(0.5, 1.5) == pytest.approx(6.0)
    assert list(steps.means(np.array([0.0, 2.0, 4.0]))) == pytest.approx([6.0, 2.0])
    assert np.isnan(steps.mean(5, 6))


def test_a_series_needs_one_edge_more_than_values() -> None:
    with pytest.raises(ValueError, match="3"):
        StepFunction(np.array([0.0, 1.0]), np.array([1.0, 2.0]))


def test_counters_become_bits_a_second() -> None:
    samples = [_sample(0.0, 0), _sample(2.0, 1000, 0.5), _sample(3.0, 1500, 1.5)]
    assert list(arrived(samples, A).values) == [4000.0, 4000.0]
    assert list(backlogged(samples, A).values) == [0.25, 1.0]


def test_a_counter_that_begins_again_leaves_a_hole() -> None:
    samples = [_sample(0, 500), _sample(1, 900), _sample(2, 100), _sample(3, 300), _sample(4, None), _sample(5, 10)]
    assert np.array_equal(arrived(samples, A).values, [3200, np.nan, 1600, np.nan, np.nan], equal_nan=True)


def test_without_samples_nothing_is_known() -> None:
    assert np.isnan(arrived([], A).values).all()
    assert np.isnan(arrived([_sample(0, 1)], A).values).all()


def test_a_link_that_is_down_or_gone_has_no_rate() -> None:
    states = [
        LinkRecord(0, 5e6, 0.1),
        LinkRecord(2, 5e6, 0.1, up=False),
        LinkRecord(3, 4e6, 0.1),
        LinkRecord(6, 0, 0.1, there=False),
    ]
    rate = rate_in_force(states, 10)
    assert np.array_equal(rate.values, [5e6, np.nan, 4e6, np.nan], equal_nan=True)
    assert list(rate.edges) == [0, 2, 3, 6, 10]


def test_downs_that_touch_are_one() -> None:
    down = [LinkRecord(at, 5e6, 0.1, up=False) for at in (2.0, 3.0)]
    assert down_spans([LinkRecord(0, 5e6, 0.1), *down, LinkRecord(4, 5e6, 0.1)], 10) == [(2.0, 4.0)]
    assert down_spans([*down, LinkRecord(5, 0, 0.1, there=False)], 10) == [(2.0, 5.0)]


def test_what_a_link_was_held_to_carry_has_gaps_where_it_was_not_known() -> None:
    looks = [
        {"at_s": 1.0, "links": {A: {"rate_bps": 5.0, "low_bps": 4.0, "high_bps": 7.0, "age_s": 1.0}}},
        {"at_s": 2.0, "links": {A: {"rate_bps": 6.0, "age_s": 1.0}}},
        {"at_s": 3.0, "links": {A: {"rate_bps": 6.0, "age_s": 99.0}}},
        {"at_s": 4.0, "links": {}},
    ]
    band = estimated(looks, A, 9.0)
    np.testing.assert_equal(band.edges, [1.0, 2.0, 3.0, 4.0, 9.0])
    np.testing.assert_equal(band.low, [4.0, 6.0, np.nan, np.nan])
    np.testing.assert_equal(band.middle, [5.0, 6.0, np.nan, np.nan])
    np.testing.assert_equal(band.high, [7.0, 6.0, np.nan, np.nan])
    assert estimated(looks, A, 900.0).edges[-1] == 4.0 + SILENCE_S, "nothing is known after the end of the record"
    grouped = band.grouped(2)
    np.testing.assert_equal(grouped.edges, [1.0, 3.0, 9.0])
    np.testing.assert_equal(grouped.low, [4.0, np.nan])
    np.testing.assert_equal(grouped.high, [7.0, np.nan])


def test_means_of_many_stretches_are_those_of_each() -> None:
    steps = StepFunction(np.array([0.0, 1.0, 2.0, 4.0]), np.array([1.0, np.nan, 3.0]))
    starts, stops = np.array([0.0, 1.0, 0.5, -2.0, 5.0]), np.array([4.0, 2.0, 3.0, 0.5, 6.0])
    each = [steps.mean(start, stop) for start, stop in zip(starts, stops, strict=True)]
    np.testing.assert_allclose(steps.means_within(starts, stops), each)


def test_estimates_are_held_against_what_was_in_force_and_old_ones_are_not(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run")
    link, at, rate = "london->madrid", 10.0, 40e6  # a link with a constant rate
    decisions = [
        {"at_s": ZERO_S + at, "estimates": {link: {"rate_bps": 1.1 * rate, "age_s": 1.0}}},
        {"at_s": ZERO_S + at, "estimates": {link: {"rate_bps": 9.9 * rate, "age_s": 99.0}}},
        {"at_s": ZERO_S + at, "estimates": {"nowhere->here": {"rate_bps": 1.0, "age_s": 1.0}}},
        {"at_s": ZERO_S + at},
    ]
    (run / "decisions.jsonl").write_text("".join(json.dumps(decision) + "\n" for decision in decisions))
    found = estimate_errors(RunRecord.read(run))
    assert found.keys() == {link}
    assert found[link].off == pytest.approx((0.1,))
    assert found[link].held == (), "none came with an interval"
