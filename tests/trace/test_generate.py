from __future__ import annotations

import statistics
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.trace.generate import Diurnal, Drop, Generator, Markov, OrnsteinUhlenbeck, Outages, UniformRedraw
from testbed.trace.trace import Row, TraceError

pytestmark = pytest.mark.pure

SEEDS = st.integers(0, 2**32)
WALK = OrnsteinUhlenbeck(20e6, spread=0.1, return_s=20, step_s=1, duration_s=180, seed=1)
REDRAW = UniformRedraw(5e6, 20e6, period_s=60, duration_s=600, seed=1)
CHAIN = Markov.dwelling((5e6, 20e6, 50e6), dwell_s=10, step_s=1, duration_s=600, seed=1)
DAY = Diurnal(20e6, swing=0.5, noise=0.1, day_s=600, step_s=10, duration_s=600, seed=1)
BREAKS = Outages(20e6, up_s=60, down_s=5, duration_s=600, seed=1)


@pytest.mark.parametrize("generator", [WALK, REDRAW, CHAIN, DAY, BREAKS], ids=lambda g: type(g).__name__)
def test_a_seed_names_one_trace(generator: Generator) -> None:
    assert generator.trace() == generator.trace()
    assert generator.trace().duration_s == pytest.approx(generator.duration_s)  # type: ignore[attr-defined]
    assert replace(generator, seed=2).trace() != generator.trace()  # type: ignore[type-var]


@pytest.mark.parametrize("generator", [WALK, REDRAW, CHAIN, DAY, BREAKS], ids=lambda g: type(g).__name__)
@pytest.mark.parametrize("duration_s", [0.5, 1, 60, 100.3, 180])
def test_a_trace_ends_at_its_duration(generator: Generator, duration_s: float) -> None:
    trace = replace(generator, duration_s=duration_s).trace()  # type: ignore[type-var]
    assert trace.duration_s == pytest.approx(duration_s)


def test_a_duration_of_whole_steps_has_a_row_for_each() -> None:
    assert [row.time_s for row in replace(WALK, step_s=0.7, duration_s=2.1).trace().rows] == [0, 0.7, 1.4]


@given(SEEDS, st.floats(0, 5), st.floats(4, 100))
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


@given(SEEDS, st.lists(st.floats(1e5, 1e9), min_size=1, max_size=5), st.floats(1, 100))
def test_a_chain_is_always_in_one_of_its_states(seed: int, rates: list[float], dwell_s: float) -> None:
    chain = Markov.dwelling(rates, dwell_s, step_s=1, duration_s=60, seed=seed)
    rows = chain.trace().rows
    assert [row.time_s for row in rows] == list(range(60))
    assert {row.rate_bps for row in rows} <= set(rates)
    assert rows[0].rate_bps == rates[0]
    assert all(sum(row) == pytest.approx(1) for row in chain.transition)


def test_a_dwell_that_no_row_would_show_is_refused() -> None:
    with pytest.raises(TraceError, match=r"write 0\.1 s") as caught:
        Markov.dwelling((5e6, 20e6), dwell_s=0.1, step_s=1, duration_s=60, seed=1)
    assert caught.value.field == "step"


def test_a_state_lasts_its_dwell_in_the_mean() -> None:
    rates = [row.rate_bps for row in replace(CHAIN, duration_s=40_000).trace().rows]
    jumps = sum(a != b for a, b in pairwise(rates))
    assert 40_000 / jumps == pytest.approx(10, rel=0.05)
    assert {rate: rates.count(rate) / 40_000 for rate in CHAIN.rates_bps} == pytest.approx(
        dict.fromkeys(CHAIN.rates_bps, 1 / 3), rel=0.1
    )


def test_a_chain_follows_its_matrix() -> None:
    cycle = Markov((1e6, 2e6, 3e6), ((0, 1, 0), (0, 0, 1), (1, 0, 0)), step_s=2, duration_s=10, seed=5)
    assert [(row.time_s, row.rate_bps) for row in cycle.trace().rows] == [
        (0, 1e6), (2, 2e6), (4, 3e6), (6, 1e6), (8, 2e6),
    ]  # fmt: skip


@given(SEEDS, st.floats(0, 1), st.floats(0, 3))
def test_a_day_keeps_within_a_tenth_and_twice_its_mean(seed: int, swing: float, noise: float) -> None:
    rows = replace(DAY, seed=seed, swing=swing, noise=noise).trace().rows
    assert all(row.rate_bps is not None and 2e6 <= row.rate_bps <= 40e6 for row in rows)


def test_a_day_without_noise_is_least_at_its_ends_and_most_at_noon() -> None:
    rates = [row.rate_bps or 0 for row in replace(DAY, noise=0).trace().rows]
    assert rates[0] == min(rates) == pytest.approx(10e6)
    assert rates[30] == max(rates) == pytest.approx(30e6)
    assert statistics.fmean(rates) == pytest.approx(20e6)


@given(SEEDS, st.floats(1, 100), st.floats(1, 100))
def test_outages_lose_everything_or_nothing_in_turn(seed: int, up_s: float, down_s: float) -> None:
    trace = replace(BREAKS, seed=seed, up_s=up_s, down_s=down_s).trace()
    assert trace.duration_s == pytest.approx(600)
    assert {row.rate_bps for row in trace.rows} == {20e6}
    turns = [row.loss for row in trace.rows][: -1 if len(trace.rows) > 1 else None]  # the last may be said twice
    assert turns == [float(i % 2) for i in range(len(turns))]


def test_outages_last_their_share() -> None:
    trace = replace(BREAKS, duration_s=100_000).trace()
    edges = [*(row.time_s for row in trace.rows), trace.duration_s]
    down = sum(stop - row.time_s for row, stop in zip(trace.rows, edges[1:], strict=True) if row.loss)
    assert down / trace.duration_s == pytest.approx(5 / 65, rel=0.15)


@pytest.mark.parametrize(
    ("generator", "broken"),
    [
        (replace(WALK, step_s=0), ("step", None)),
        (replace(WALK, return_s=0), ("return", None)),
        (replace(WALK, return_s=3), ("step", None)),
        (replace(DAY, day_s=60), ("step", None)),
        (replace(REDRAW, duration_s=float("inf")), ("duration", None)),
        (replace(REDRAW, low_bps=-1), ("low", None)),
        (replace(REDRAW, low_bps=2 * REDRAW.high_bps), ("low", None)),
        (replace(DAY, step_s=1e-9), ("step", None)),
        (replace(REDRAW, period_s=0), ("period", None)),
        (replace(REDRAW, period_s=1e-9), ("period", None)),
        (replace(BREAKS, duration_s=1e9, up_s=0.001), ("up", None)),
        (replace(BREAKS, duration_s=1e9, down_s=0.001), ("down", None)),
        (replace(CHAIN, rates_bps=()), ("rates", None)),
        (replace(CHAIN, rates_bps=(1e6,)), ("transition", "shape")),
        (replace(CHAIN, rates_bps=(1e6, 2e6), transition=((0.5, 0.6), (1, 0))), ("transition", "sum")),
    ],
)
def test_arguments_that_make_no_trace_are_refused(generator: Generator, broken: tuple[str | None, str | None]) -> None:
    with pytest.raises(TraceError) as caught:
        generator.trace()
    assert (caught.value.field, caught.value.rule) == broken
