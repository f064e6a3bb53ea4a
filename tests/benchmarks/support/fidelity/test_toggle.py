"""The bytes that a window of a toggled link allows, and those that arrived."""

from __future__ import annotations

import pytest

from benchmarks.support.fidelity.flows import TCP_HEADERS_BYTES, Look
from benchmarks.support.fidelity.toggle import EXCESS, FAST_BPS, SLOW_BPS, WINDOW_S, Change, allowed_bytes, windows
from testbed.emulation.shaping.netem import burst_bytes
from testbed.link import MTU_FRAME_BYTES

pytestmark = pytest.mark.pure

CHANGES = [Change(0.0, 0.0, SLOW_BPS), Change(1.0, 1.02, FAST_BPS), Change(2.0, 2.02, SLOW_BPS)]


@pytest.mark.parametrize(
    ("begin", "rate"),
    [(0.5, SLOW_BPS), (0.95, FAST_BPS), (1.5, FAST_BPS), (2.01, FAST_BPS), (2.1, SLOW_BPS)],
)
def test_a_window_is_held_against_the_highest_rate_that_may_have_been_in_force(begin: float, rate: float) -> None:
    allowed = allowed_bytes(CHANGES, begin, begin + WINDOW_S)
    assert allowed == pytest.approx(EXCESS * rate / 8 * WINDOW_S + burst_bytes(rate))


def test_windows_are_counted_in_frames_whatever_they_came_in() -> None:
    """Each look has ten super-packets of ten segments: one set of headers each, where a wire would have ten."""
    size = 10 * (10 * (MTU_FRAME_BYTES - TCP_HEADERS_BYTES) + TCP_HEADERS_BYTES)
    looks = [Look(number * WINDOW_S / 4, number * size, number * 10, 0, 0) for number in range(9)]
    found = list(windows(looks))
    assert len(found) == 5
    assert {round(bytes_) for _, _, bytes_ in found} == {4 * 100 * MTU_FRAME_BYTES}
