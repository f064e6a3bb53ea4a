from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.trace.generate import Drop, OrnsteinUhlenbeck, UniformRedraw
from testbed.trace.trace import Row

pytestmark = pytest.mark.unit

SEEDS = st.integers(0, 2**32)
WALK = OrnsteinUhlenbeck(20e6, spread=0.1, return_s=20, step_s=1, duration_s=180, seed=1)
REDRAW = UniformRedraw(5e6, 20e6, period_s=60, duration_s=600, seed=1)


@pytest.mark.parametrize("generator", [WALK, REDRAW], ids=lambda g: type(g).__name__)
def test_a_seed_names_one_trace(generator: OrnsteinUhlenbeck | UniformRedraw) -> None:
    assert generator.trace() == generator.trace()
    assert replace(generator, seed=2).trace() != generator.trace()


@given(SEEDS, st.floats(0, 5), st.floats(0.1, 100))
def test_a_walk_keeps_within_a_tenth_and_twice_its_mean(seed: int, spread: float, return_s: float) -> None:
    rows = replace(WALK, seed=seed, spread=spread, return_s=return_s).trace().rows
    assert [row.time_s for row in rows] == list(range(180))
    assert all(row.rate_bps is not None and 2e6 <= row.rate_bps <= 40e6 for row in rows)


def test_a_walk_s_spread_is_its_deviation_from_its_mean() -> None:
    rates = [row.rate_bps or 0 for row in replace(WALK, duration_s=40_000).trace().rows]
    assert statistics.fmean(rates) == pytest.approx(20e6, rel=0.02)
    assert statistics.stdev(rates) == pytest.approx(2e6, rel=0.1)


@given(SEEDS)
def test_a_redraw_is_within_its_ends_once_a_period(seed: int) -> None:
    rows = replace(REDRAW, seed=seed).trace().rows
    assert [row.time_s for row in rows] == [60 * i for i in range(10)]
    assert all(row.rate_bps is not None and 5e6 <= row.rate_bps <= 20e6 for row in rows)


def test_a_redraw_uses_all_of_its_range() -> None:
    rates = [row.rate_bps or 0 for row in replace(REDRAW, duration_s=60 * 2000).trace().rows]
    assert statistics.fmean(rates) == pytest.approx(12.5e6, rel=0.03)
    assert min(rates) < 5.2e6
    assert max(rates) > 19.8e6


def test_a_drop_is_on_the_rows_within_it() -> None:
    rows = (*(Row(t, 12e6, delay_s=0.1) for t in range(4)), Row(4, None))
    assert [row.rate_bps for row in Drop(1, 3, 1 / 6).over(rows)] == [12e6, 2e6, 2e6, 12e6, None]
    assert all(row.delay_s == 0.1 for row in Drop(1, 3, 1 / 6).over(rows)[:4])


def test_a_generator_names_itself_whole() -> None:
    assert str(WALK) == (
        "OrnsteinUhlenbeck(mean_bps=20000000.0, spread=0.1, return_s=20, step_s=1, duration_s=180, seed=1)"
    )
