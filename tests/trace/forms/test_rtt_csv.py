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
        ("", "is empty; begin with a header that has rtt"),
        ("timestamp_ns,RTT\n1,2", "line 1: the header has no column 'rtt'"),
        ("time,rtt\n1,2", "line 1: the header has no column 'timestamp_ns'; it must have timestamp_ns and rtt"),
        ("timestamp,rtt\n1.2.3,2", "line 2: timestamp '1.2.3' is no whole number"),
        ("timestamp_ns,rtt\nsNaN,2", "line 2: timestamp_ns 'sNaN' is no whole number"),
        ("timestamp_ns,rtt", "has no lines below its header"),
        ("timestamp_ns,rtt\n1.5,2", "line 2: timestamp_ns '1.5' is no whole number of nanoseconds"),
        ("timestamp_ns,rtt\n99999999999999999999,2", "is no whole number"),
        ("timestamp_ns,rtt\n5,2\n4,2", "line 3: its time is before that of the line before"),
        ("timestamp_ns,rtt\n5,", "line 2: rtt '' must be a number from -1 to 120000"),
        ("timestamp_ns,rtt\n5,-0.5", "line 2: rtt -0.5 ms is below 0; write -1"),
        ("timestamp_ns,rtt\n5,inf", "line 2: rtt 'inf' must be"),
        ("timestamp_ns,rtt\n5", "line 2: has 1 cells where the header has 2"),
    ],
)
def test_what_breaks_the_form_is_said(text: str, said: str) -> None:
    with pytest.raises(TraceError) as caught:
        parse_rtt_csv(text.splitlines())
    assert said in str(caught.value)


@given(st.integers(0, 2**62), st.lists(st.tuples(st.integers(0, 10**12), st.integers(-1, 120_000)), min_size=1))
def test_what_was_written_is_read(begin: int, steps: list[tuple[int, int]]) -> None:
    now, lines, wanted = begin, ["rtt,timestamp_ns"], []
    for gap, trip in steps:
        lines.append(f"{trip},{now}")
        wanted.append((pytest.approx((now - begin) / 1e9), None if trip <= 0 else pytest.approx(trip / 1e3)))
        now += gap
    assert parse_rtt_csv(lines) == wanted
