"""The doctor of a cluster: what it reads from `ping`, and how far another clock is ahead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.scaleout.doctor import READINGS, clock_offset, round_trip

pytestmark = pytest.mark.pure

ANSWERED = """PING 10.99.0.2 (10.99.0.2) 56(84) bytes of data.

--- 10.99.0.2 ping statistics ---
21 packets transmitted, 21 received, 0% packet loss, time 1012ms
rtt min/avg/max/mdev = 4.031/4.082/4.175/0.056 ms
"""
SILENT = """PING 10.99.0.9 (10.99.0.9) 56(84) bytes of data.

--- 10.99.0.9 ping statistics ---
21 packets transmitted, 0 received, 100% packet loss, time 1024ms
"""

ONE_WAY_S = st.floats(1e-4, 0.2)
WAYS = st.lists(st.tuples(ONE_WAY_S, ONE_WAY_S), min_size=READINGS, max_size=READINGS)


def test_the_least_round_trip_and_the_jitter_are_in_seconds() -> None:
    assert round_trip(ANSWERED) == (pytest.approx(4.031e-3), pytest.approx(0.056e-3))


def test_where_nothing_came_back_nothing_is_known() -> None:
    assert round_trip(SILENT) == (None, None)


@given(st.floats(-10, 10), WAYS)
def test_the_offset_is_within_its_bound_whatever_the_ways_take(ahead_s: float, ways: list[tuple[float, float]]) -> None:
    now_s = 1000.0
    left = iter(ways)

    def own_s() -> float:
        return now_s

    def read_s() -> float:
        nonlocal now_s
        there_s, back_s = next(left)
        now_s += there_s
        read = now_s + ahead_s
        now_s += back_s
        return read

    offset_s, bound_s = clock_offset(read_s, own_s)
    assert abs(offset_s - ahead_s) <= bound_s + 1e-9
    assert bound_s == pytest.approx(min(there + back for there, back in ways) / 2)
