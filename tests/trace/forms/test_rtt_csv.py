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
    ("text", "said"),
    [
        ("", "is empty; begin with a header that has timestamp_ns, "),
        ("timestamp_ns,RTT\n1,2", "line 1: the header has no column 'rtt'"),
        ("time,rtt\n1,2", "line 1: the header has no column 'timestamp_ns'; it must have timestamp_ns and rtt"),
        ("timestamp,rtt\n1.2.3,2", "line 2: timestamp '1.2.3' is no number of seconds"),
        ("timestamp_ns,rtt\nsNaN,2", "line 2: timestamp_ns 'sNaN' is no whole number"),
        ("timestamp_ns,rtt", "has no lines below its header"),
        ("timestamp_ns,rtt\n1.5,2", "line 2: timestamp_ns '1.5' is no whole number of nanoseconds"),
        ("timestamp_ns,rtt\n99999999999999999999,2", "is no whole number"),
        ("timestamp_ns,rtt\n5,2\n4,2", "line 3: its time is before that of the line before"),
        ("timestamp_ns,rtt\n5,", "line 2: rtt '' must be a number from -1 to 120000"),
        ("timestamp_ns,rtt\n5,-0.5", "line 2: rtt -0.5 is below 0; write -1"),
        ("timestamp_ns,rtt\n5,inf", "line 2: rtt 'inf' must be"),
        ("timestamp_ns,timestamp_s,rtt\n5,5,5", "line 1: the header has both 'timestamp_ns' and 'timestamp_s'"),
        ("timestamp_ns,rtt\n5,0.0421", "column rtt: says no unit, and half of the round trips are below 0.0421: in ms"),
        ("timestamp_ns,rtt\n5,42100", "column rtt: says no unit, and half of the round trips are above 42100"),
        (
            "timestamp,rtt\n0,42\n20000,42",
            "column timestamp: in ns its packets are 20000 ns apart, and no",
        ),
        ("timestamp_ns,rtt\n5", "line 2: has 1 cells where the header has 2"),
    ],
)
def test_what_breaks_the_form_is_said(text: str, said: str) -> None:
    with pytest.raises(TraceError) as caught:
        parse_rtt_csv(text.splitlines())
    assert said in str(caught.value)


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


@given(st.integers(0, 2**62), st.lists(st.tuples(st.integers(0, 10**12), st.integers(-1, 2_000)), min_size=1))
def test_what_was_written_is_read(begin: int, steps: list[tuple[int, int]]) -> None:
    now, lines, wanted = begin, ["rtt,timestamp_ns"], []
    for gap, trip in steps:
        lines.append(f"{trip},{now}")
        wanted.append((pytest.approx((now - begin) / 1e9), None if trip <= 0 else pytest.approx(trip / 1e3)))
        now += gap
    assert parse_rtt_csv(lines) == wanted
