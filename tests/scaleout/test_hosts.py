"""How far another clock is ahead, by asking it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.scaleout.hosts import READINGS, clock_offset

pytestmark = pytest.mark.pure

WAYS = st.lists(st.tuples(st.floats(1e-4, 0.2), st.floats(1e-4, 0.2)), min_size=READINGS, max_size=READINGS)


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
