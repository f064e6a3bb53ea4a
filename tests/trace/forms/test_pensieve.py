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
    ("text", "broken"),
    [
        ("", ("too-few", None)),
        ("0 1", ("too-few", None)),
        ("0 1\n1", ("cells", 2)),
        ("0 1\n\n1 2 3", ("cells", 3)),
        ("0 1\n1,2", ("cells", 2)),
        ("0 1\n1 x", ("number", 2)),
        ("0 1\n1 -2", ("range", 2)),
        ("0 1\n1 nan", ("range", 2)),
        ("0 1\n0 2", ("order", 2)),
        ("0 0\n1 0\n2 0.001", ("rate-below", None)),
        ("0 1\n1 999999", ("unit", 2)),
        ("0 1200\n1 0\n2 5800", ("unit", None)),
        ("1700000000000 1\n1700000001000 2", ("range", 1)),
        ("0 1\n1000 2\n2000 1", ("unit", None)),
        ("0 1\n1,234 2", ("decimal-sign", 2)),
        ("0 1\n1e-9 1\n2e-9 1", ("too-many", None)),
    ],
)
def test_what_breaks_the_form_is_named(text: str, broken: tuple[str, int | None]) -> None:
    with pytest.raises(TraceError) as caught:
        parse_pensieve(text.splitlines())
    assert (caught.value.rule, caught.value.line) == broken


def test_rates_that_fall_below_a_gigabit_at_times_are_in_mbit() -> None:
    assert parse_pensieve(["0 1200", "1 1300", "2 900"]).rows[0].rate_bps == pytest.approx(1.3e9)


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
