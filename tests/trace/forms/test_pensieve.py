from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.trace.forms.pensieve import parse_pensieve
from testbed.trace.trace import TraceError

pytestmark = pytest.mark.pure

#: In the form of the files cooked from a bus ride: seconds since the ride began, and Mbit/s.
RIDE = """\
0.0\t1.1259
0.932\t2.7407
1.941 0.9512

3.2    0
4.205\t3.1\r
"""


def test_a_line_s_rate_is_that_of_the_time_which_ends_at_it() -> None:
    trace = parse_pensieve(RIDE.split("\n"))
    assert [(row.time_s, row.rate_bps) for row in trace.rows[:2]] == [
        (0, pytest.approx(2.7407e6)),
        (0.932, pytest.approx(951_200)),
    ]
    assert trace.rows[2].rate_bps == pytest.approx(64e3), "a link carries no less; what it lends comes from the next"
    assert trace.duration_s == pytest.approx(4.205)


def test_a_trace_that_begins_later_begins_at_0() -> None:
    assert [row.time_s for row in parse_pensieve(["100 1", "101 2", "103 3"]).rows] == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has 0 lines; write two or more"),
        ("0 1", "has 1 lines; write two or more"),
        ("0 1\n1", "line 2: has 1 columns; write two: seconds and Mbit/s"),
        ("0 1\n\n1 2 3", "line 3: has 3 columns"),
        ("0 1\n1,2", "line 2: has 1 columns"),
        ("0 1\n1 x", "line 2: 'x' is not a number"),
        ("0 1\n1 -2", "line 2: -2 must be between 0 and 1e10"),
        ("0 1\n1 nan", "line 2: nan must be between"),
        ("0 1\n0 2", "line 2: 0 s does not come after 0 s; sort the lines"),
        ("0 0\n1 0\n2 0.001", "carries 0.5 kbit/s in the mean"),
        ("0 1\n1 999999", "line 2: 999999 Mbit/s is over 10000: it counts kbit/s or less; write Mbit/s"),
        ("1700000000000 1\n1700000001000 2", "line 1: 1700000000000 must be between 0 and 1e10"),
        ("0 1\n1000 2\n2000 1", "has a line each 1000 s, as files do that count milliseconds"),
        ("0 1\n1,234 2", "line 2: '1,234' may be 1.234 or 1234; write it with a decimal point"),
        ("0 1\n1e-9 1\n2e-9 1", "over 2000 a second"),
    ],
)
def test_what_breaks_the_form_is_said(text: str, said: str) -> None:
    with pytest.raises(TraceError) as caught:
        parse_pensieve(text.splitlines())
    assert said in str(caught.value)


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(100, 10**6)), min_size=2, max_size=30))
def test_rates_and_times_are_kept(steps: list[tuple[int, int]]) -> None:
    """Milliseconds and kbit/s."""
    lines, now = ["0 0"], 0
    for length, rate in steps:
        now += length
        lines.append(f"{now / 1e3} {rate / 1e3}")
    trace = parse_pensieve(lines)
    assert trace.duration_s == pytest.approx(now / 1e3)
    for (_, rate), row in zip(steps, trace.rows, strict=False):
        assert row.rate_bps == pytest.approx(rate * 1e3)
