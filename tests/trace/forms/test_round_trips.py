from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.trace.forms.round_trips import by_windows, window_for
from testbed.trace.trace import TraceError

pytestmark = pytest.mark.pure


def test_a_window_has_half_the_median_and_each_way_s_loss() -> None:
    trace = by_windows([(0.0, 0.04), (0.2, 0.05), (0.4, 0.09), (0.6, None), (1.0, None), (1.5, None), (3.0, 0.06)], 1.0)
    assert [(row.time_s, row.delay_s, row.loss) for row in trace.rows[:3]] == [
        (0, 0.025, pytest.approx(1 - 0.75**0.5)),
        (1, 0.025, 1),
        (3, 0.03, 0),
    ]
    assert trace.duration_s == pytest.approx(3.3)


@pytest.mark.parametrize("sent", [20, 21, 25, 29])
def test_a_last_window_holds_as_long_as_its_samples(sent: int) -> None:
    lost = sent - 1
    trace = by_windows([(float(i), None if i == lost else 0.04) for i in range(sent)], 10.0)
    assert trace.duration_s == pytest.approx(sent)
    spans = zip(trace.rows, [*(row.time_s for row in trace.rows[1:]), trace.duration_s], strict=True)
    came = sum((1 - (row.loss or 0.0)) ** 2 * (end_s - row.time_s) for row, end_s in spans)
    assert came == pytest.approx(sent - 1)


def test_a_last_window_of_a_moment_holds_a_tenth_of_a_window() -> None:
    samples = [(i / 1e6, 0.04) for i in range(5)] + [(1.0, 0.04), (1.000001, 0.04)]
    assert by_windows(samples, 1.0).duration_s == pytest.approx(1.1)


def test_a_first_window_that_lost_all_has_the_delay_that_follows() -> None:
    assert by_windows([(0.0, None), (1.0, 0.04)], 1.0).rows[0].delay_s == 0.02


def test_a_window_holds_ten_by_default_and_lasts_a_second_at_least() -> None:
    assert window_for([(i * 0.02, 0.04) for i in range(500)]) == 1
    assert window_for([(float(i), 0.04) for i in range(50)]) == 10
    assert window_for([(0.0, 0.04)]) == 1


def test_what_makes_no_trace_is_refused() -> None:
    with pytest.raises(TraceError) as caught:
        by_windows([(0.0, None)], 1.0)
    assert caught.value.rule == "no-reply"


@given(st.lists(st.tuples(st.integers(0, 3000), st.none() | st.integers(1, 900)), min_size=1), st.integers(1, 5000))
def test_round_trips_over_the_trace_are_those_measured(steps: list[tuple[int, int | None]], window_ms: int) -> None:
    now, samples = 0, []
    for gap, trip_ms in steps:
        samples.append((now / 1e3, None if trip_ms is None else trip_ms / 1e3))
        now += gap
    if all(trip is None for _, trip in samples):
        return
    trace = by_windows(samples, window_ms / 1e3)
    came = [trip for _, trip in samples if trip is not None]
    for row in trace.rows:
        assert row.delay_s is not None and row.loss is not None
        assert min(came) / 2 <= row.delay_s <= max(came) / 2
        assert 0 <= row.loss <= 1
    last = trace.at(samples[-1][0])
    assert last is not None and ((last.loss == 1) <= (samples[-1][1] is None))
