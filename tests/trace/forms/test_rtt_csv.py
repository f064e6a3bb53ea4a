from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.trace.forms.rtt_csv import parse_rtt_csv
from testbed.trace.trace import TraceError

pytestmark = pytest.mark.pure

STARLINK = """\
timestamp_ns,rtt,direction
1700000000000000123,42.1,a
1700000000020000123,-1,a

1700000000020000123,38.25,b
"""


def test_round_trips_and_losses() -> None:
    assert parse_rtt_csv(STARLINK.splitlines()) == [(0, 0.0421), (0.02, None), (0.02, 0.03825)]


def test_the_forms_of_lens() -> None:
    irtt = ["timestamp,rtt,uplink,downlink", "1705744800616897349,0,0,-1", "1705744800626565141,120.126123,72.4,47.7"]
    assert parse_rtt_csv(irtt) == [(0, None), (pytest.approx(0.009667792), 0.120126123)]
    ping = ["timestamp,rtt", "1705744800.533641,91.8", "1705744800.55492,96.5"]
    assert parse_rtt_csv(ping) == [(0, pytest.approx(0.0918)), (pytest.approx(0.021279), 0.0965)]


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("", ("empty", None, None)),
        ("timestamp_ns,RTT\n1,2", ("missing-column", 1, "rtt")),
        ("time,rtt\n1,2", ("missing-column", 1, "timestamp_ns")),
        ("# from there\n\ntime,rtt\n1,2", ("missing-column", 3, "timestamp_ns")),
        ("timestamp,rtt\n1.2.3,2", ("number", 2, "timestamp")),
        ("timestamp_ns,rtt\nsNaN,2", ("number", 2, "timestamp_ns")),
        ("timestamp_ns,rtt", ("empty", None, None)),
        ("timestamp_ns,rtt\n1.5,2", ("number", 2, "timestamp_ns")),
        ("timestamp_ns,rtt\n99999999999999999999,2", ("number", 2, "timestamp_ns")),
        ("timestamp_ns,rtt\n5,2\n4,2", ("order", 3, "timestamp_ns")),
        ("timestamp_ns,rtt\n5,", ("number", 2, "rtt")),
        ("timestamp_ns,rtt\n5,-0.5", ("range", 2, "rtt")),
        ("timestamp_ns,rtt\n5,inf", ("number", 2, "rtt")),
        ("timestamp_ns,timestamp_s,rtt\n5,5,5", ("two-columns", 1, "timestamp_ns")),
        ("# from there\nrtt,rtt_ms,timestamp\n5,5,5", ("two-columns", 2, "rtt")),
        ("timestamp_ns,rtt\n5,0.0421", ("unit", None, "rtt")),
        ("timestamp_ns,rtt\n5,42100", ("unit", None, "rtt")),
        ("timestamp,rtt\n0,42\n20000,42", ("unit", None, "timestamp")),
        ("timestamp,rtt\n0,42\n1000000,42\n2000000,42", ("unit", None, "timestamp")),
        ("timestamp_ns,rtt\n5", ("cells", 2, None)),
    ],
)
def test_what_breaks_the_form_is_named(text: str, broken: tuple[object, ...]) -> None:
    with pytest.raises(TraceError) as caught:
        parse_rtt_csv(text.splitlines())
    assert (caught.value.rule, caught.value.line, caught.value.field) == broken


BEGIN_S = 1_700_000_000


@pytest.mark.parametrize(
    ("column", "times"),
    [
        ("timestamp_ns", (BEGIN_S * 10**9, BEGIN_S * 10**9 + 20_000_000)),
        ("timestamp_us", (5, 20_005)),
        ("timestamp_ms", (0, 20)),
        ("timestamp_s", (0, 0.02)),
        ("timestamp", (BEGIN_S * 10**9, BEGIN_S * 10**9 + 20_000_000)),
        ("timestamp", (BEGIN_S * 10**6, BEGIN_S * 10**6 + 20_000)),
        ("timestamp", (BEGIN_S * 10**3, BEGIN_S * 10**3 + 20)),
        ("timestamp", (f"{BEGIN_S}.00", f"{BEGIN_S}.02")),
        ("timestamp", ("0.00", "0.02")),
        ("timestamp", (0, 20_000_000)),
    ],
)
@pytest.mark.parametrize(
    ("trip_column", "trip"), [("rtt", 42.1), ("rtt_ms", 42.1), ("rtt_s", 0.0421), ("rtt_us", 42100)]
)
def test_the_unit_is_told_by_the_column_or_by_what_is_our_time(
    column: str, times: tuple[object, object], trip_column: str, trip: float
) -> None:
    found = parse_rtt_csv([f"{trip_column},{column}", f"{trip},{times[0]}", f"-1,{times[1]}"])
    assert found == [(0, pytest.approx(0.0421)), (pytest.approx(0.02), None)]


@pytest.mark.parametrize(("column", "step"), [("timestamp_ns", 20), ("timestamp_ns", 20_000), ("timestamp_us", 20)])
def test_times_too_close_for_the_unit_of_their_column_are_refused(column: str, step: int) -> None:
    """Milliseconds or microseconds in a column of nanoseconds, milliseconds in one of microseconds."""
    with pytest.raises(TraceError) as caught:
        parse_rtt_csv([f"{column},rtt", *(f"{i * step},42.1" for i in range(5))])
    assert (caught.value.rule, caught.value.field) == ("unit", column)


#: Times between packets in ns: none, or as long as a prober's at least.
GAPS = st.just(0) | st.integers(100_000, 10**12)


@given(st.integers(0, 2**62), st.lists(st.tuples(GAPS, st.integers(-1, 2_000)), min_size=1))
def test_what_was_written_is_read(begin: int, steps: list[tuple[int, int]]) -> None:
    now, lines, wanted = begin, ["rtt,timestamp_ns"], []
    for gap, trip in steps:
        lines.append(f"{trip},{now}")
        wanted.append((pytest.approx((now - begin) / 1e9), None if trip <= 0 else pytest.approx(trip / 1e3)))
        now += gap
    assert parse_rtt_csv(lines) == wanted
