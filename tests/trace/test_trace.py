from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice, pairwise, takewhile
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.link import GilbertElliott, LinkState, Opportunities
from testbed.trace.mahimahi import DeliverySchedule
from testbed.trace.trace import End, Row, Trace, TraceError, lasting

pytestmark = pytest.mark.pure

ENDS = st.sampled_from(get_args(End))
#: Eighths of a second are exact in binary, so that sums of them are too.
EIGHTHS = st.integers(1, 80).map(lambda eighths: eighths / 8)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Traces of up to eight rows, each told from the others by its rate."""
    moments = [0.0]
    for gap in draw(st.lists(EIGHTHS, max_size=7)):
        moments.append(moments[-1] + gap)
    trace = Trace(tuple(Row(moment, 1e6 + i) for i, moment in enumerate(moments)), draw(ENDS))
    return replace(trace, offset_s=draw(st.integers(0, int(trace.duration_s * 8) - 1)) / 8)


@given(traces(), st.integers(0, 8000).map(lambda eighths: eighths / 8))
def test_the_row_at_a_time_is_that_of_the_last_change(trace: Trace, time_s: float) -> None:
    changes = list(takewhile(lambda change: change[0] <= time_s, trace.changes()))
    assert trace.at(time_s) == changes[-1][1]


@given(traces())
def test_changes_come_in_rising_time(trace: Trace) -> None:
    moments = [moment for moment, _ in islice(trace.changes(), 40)]
    assert moments[0] == 0
    assert all(a < b for a, b in pairwise(moments))


@given(traces(), st.integers(0, 800).map(lambda eighths: eighths / 8))
def test_an_offset_begins_within_the_rows(trace: Trace, time_s: float) -> None:
    assert trace.at(time_s) == replace(trace, offset_s=0).at(time_s + trace.offset_s)


def test_a_loop_begins_anywhere_and_others_before_their_end() -> None:
    rows = (Row(0, 1e6), Row(2, 2e6))
    assert Trace(rows, "loop").begun(7).offset_s == 3
    assert [change for change, _ in islice(Trace(rows, "loop").begun(7).changes(), 4)] == [0, 1, 3, 5]
    assert list(Trace(rows, "stop").begun(3).changes()) == [(0, rows[1]), (1, None)]
    for end in ("hold", "stop"):
        with pytest.raises(TraceError) as caught:
            Trace(rows, end).begun(4)
        assert (caught.value.field, caught.value.given) == ("offset", 4)


@given(traces(), EIGHTHS)
def test_rows_are_made_to_last(trace: Trace, more: float) -> None:
    until = trace.rows[-1].time_s + more
    made = Trace(lasting(trace.rows, until))
    assert made.duration_s == until
    assert made.at(until - 1e-3) is not None
    assert [r.rate_bps for r in made.rows[: len(trace.rows)]] == [r.rate_bps for r in trace.rows]
    assert len(made.rows) <= len(trace.rows) + 1


def test_a_row_that_begins_at_the_end_but_for_rounding_is_left_out() -> None:
    made = Trace(lasting((Row(0, 1e6), Row(0.7, 2e6)), math.nextafter(0.7, 1)))
    assert {row.rate_bps for row in made.rows} == {1e6}
    assert made.duration_s == pytest.approx(0.7)


@given(traces())
def test_the_last_row_lasts_as_long_as_the_one_before_it(trace: Trace) -> None:
    if len(trace.rows) == 1:
        assert trace.duration_s == 1
    else:
        assert trace.duration_s - trace.rows[-1].time_s == trace.rows[-1].time_s - trace.rows[-2].time_s


def test_each_end_policy() -> None:
    rows = (Row(0, 1e6), Row(2, 2e6))
    assert [Trace(rows, "loop").at(t) for t in (3.75, 4, 6)] == [rows[1], rows[0], rows[1]]
    assert [Trace(rows, "hold").at(t) for t in (3.75, 4, 1e9)] == [rows[1]] * 3
    assert [Trace(rows, "stop").at(t) for t in (3.75, 4, 6)] == [rows[1], None, None]
    assert list(Trace(rows, "stop").changes()) == [(0, rows[0]), (2, rows[1]), (4, None)]
    assert list(Trace(rows, "hold").changes()) == [(0, rows[0]), (2, rows[1])]


@pytest.mark.parametrize("end", ["loop", "hold", "stop"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_rows_that_change_nothing_are_passed_over(end: End, count: int) -> None:
    steady = Trace(tuple(Row(i / 1000, 1e6 * (1 + i * 1e-15), 0.02) for i in range(count)), end)
    assert steady.is_steady
    over = [(steady.duration_s, None)] if end == "stop" else []
    assert list(steady.changes()) == [(0, steady.rows[0]), *over]
    rows = tuple(Row(i, rate) for i, rate in enumerate((1e6, 1e6, 2e6, 2e6, 1e6, 1e6)))
    found = list(islice(Trace(rows, end).changes(), 4))
    expected = {"loop": [(0, rows[0]), (2, rows[2]), (4, rows[4]), (8, rows[2])]}
    assert found == expected.get(
        end, [(0, rows[0]), (2, rows[2]), (4, rows[4]), *([(6, None)] if end == "stop" else [])]
    )


@given(st.lists(st.sampled_from([1e6, 2e6]), min_size=1, max_size=8), ENDS, st.integers(0, 80), st.integers(0, 7))
def test_what_is_passed_over_changes_nothing_at_any_time(
    rates: list[float], end: End, eighths: int, offset: int
) -> None:
    trace = Trace(tuple(Row(i, rate) for i, rate in enumerate(rates)), end).begun(min(offset, len(rates) - 1))
    changes = list(takewhile(lambda change: change[0] <= eighths / 8, trace.changes()))
    there, row = trace.at(eighths / 8), changes[-1][1]
    assert (there and there.rate_bps) == (row and row.rate_bps)
    assert all((a and a.rate_bps) != (b and b.rate_bps) for (_, a), (_, b) in pairwise(changes)), (
        "each is another than the one before"
    )


@pytest.mark.parametrize("field", ["rate_bps", "delay_s", "jitter_s", "loss"])
@pytest.mark.parametrize(("before", "after"), [(None, 0.5), (0.5, None), (0.5, 0.6), (0.0, 1e-6), (0.5, 0.500001)])
def test_a_change_of_any_column_counts(field: str, before: float | None, after: float | None) -> None:
    trace = Trace((Row(0, **{field: before}), Row(1, **{field: after})), "hold")
    assert [time_s for time_s, _ in trace.changes()] == [0, 1]


def test_a_constant_packet_delivery_file_is_steady() -> None:
    for moments in ((1,), (5, 10), tuple(range(0, 100, 3))):
        assert DeliverySchedule(moments).resampled().trace.is_steady
    assert not DeliverySchedule((*range(100), *range(100, 201, 2))).resampled().trace.is_steady


def test_a_single_row_never_changes_again() -> None:
    assert list(Trace((Row(0, 1e6),), "loop").changes()) == [(0, Row(0, 1e6))]


@given(traces(), st.floats(0.01, 100))
def test_scaling_multiplies_rates_and_nothing_else(trace: Trace, factor: float) -> None:
    scaled = trace.scaled(factor)
    assert (scaled.end, scaled.offset_s) == (trace.end, trace.offset_s)
    assert [row.time_s for row in scaled.rows] == [row.time_s for row in trace.rows]
    assert [row.rate_bps for row in scaled.rows] == [row.rate_bps * factor for row in trace.rows if row.rate_bps]


def test_scaled_opportunities_come_as_often_for_fewer_bytes() -> None:
    trace = Trace((Row(0, 2e6),), opportunities=Opportunities((0, 5, 10), 1500.0)).scaled(0.2)
    assert trace.opportunities == Opportunities((0, 5, 10), 300.0)
    assert trace.opportunities.mean_bps == 3 * 300 * 8 / 0.010


def test_a_row_without_a_rate_stays_without_when_scaled() -> None:
    assert Trace((Row(0, delay_s=0.1),)).scaled(2).rows == (Row(0, delay_s=0.1),)


def test_a_row_leaves_what_it_does_not_name() -> None:
    state = LinkState(1e6, 0.01, 0.001, 0.5, up=False)
    assert Row(0, rate_bps=2e6, loss=0.0).over(state) == LinkState(2e6, 0.01, 0.001, 0.0, up=False)
    bursts = GilbertElliott(0.1, 0.4)
    bursty = LinkState(1e6, 0.01, loss=bursts.mean, bursts=bursts)
    assert Row(0, rate_bps=2e6).over(bursty) == LinkState(2e6, 0.01, loss=bursts.mean, bursts=bursts)
    assert Row(0, loss=0.5).over(bursty) == LinkState(1e6, 0.01, loss=0.5)
    assert Row(0, delay_s=0.0, jitter_s=0.0).over(state) == LinkState(1e6, 0.0, 0.0, 0.5, up=False)


@pytest.mark.parametrize("moments", [[], [1.0], [0.0, 0.0], [0.0, 2.0, 1.0]])
def test_a_trace_begins_at_0_and_rises(moments: list[float]) -> None:
    with pytest.raises(TraceError):
        Trace(tuple(Row(moment, 1e6) for moment in moments))
