"""What samples tell of another host's clock, against clocks that are known."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.scaleout.clock import ClockSample, best_of_stretches, estimate

pytestmark = pytest.mark.pure


def samples(
    offset_s: float, drift: float, one_way_s: float, queue_s: float, seconds: float, seed: int = 1
) -> list[ClockSample]:
    """Probes at 20 Hz to a clock that is so far ahead at first, and gains `drift`; each way has a queue of its own."""
    draw = random.Random(seed)
    found = []
    for number in range(int(seconds * 20)):
        sent = 1000.0 + number / 20
        there, back = (one_way_s + draw.expovariate(1 / queue_s) if queue_s else one_way_s for _ in range(2))
        theirs = sent + there
        theirs += offset_s + drift * (theirs - 1000.0)
        found.append(ClockSample(sent, theirs, theirs + 20e-6, sent + there + 20e-6 + back))
    return found


@given(
    offset_s=st.floats(-1e5, 1e5),
    drift=st.sampled_from([0.0, 50e-6, -200e-6]),
    one_way_s=st.floats(1e-4, 0.05),
    queue_s=st.sampled_from([0.0, 1e-4, 2e-3]),
    seed=st.integers(0, 1000),
)
def test_an_offset_is_within_its_bound(
    offset_s: float, drift: float, one_way_s: float, queue_s: float, seed: int
) -> None:
    found = estimate(samples(offset_s, drift, one_way_s, queue_s, 10.0, seed))
    true_s = offset_s + drift * (found.at_s - 1000.0)
    assert abs(found.offset_s - true_s) <= found.offset_bound_s + 1e-6
    assert found.offset_bound_s <= found.bound_s


def test_drift_is_told_from_none_in_a_quarter_of_a_minute() -> None:
    none = estimate(samples(5.0, 0.0, 2e-3, 1e-4, 16.0))
    fast = estimate(samples(5.0, 200e-6, 2e-3, 1e-4, 16.0))
    assert none.drift is not None
    assert fast.drift is not None
    assert abs(none.drift) < 10e-6
    assert fast.drift == pytest.approx(200e-6, abs=10e-6)
    assert fast.drift_error < 10e-6


def test_nothing_is_said_of_drift_that_was_seen_for_too_short_a_time() -> None:
    assert estimate(samples(5.0, 1e-3, 1e-3, 0.0, 4.0)).drift is None


def test_a_moment_is_carried_over_and_back() -> None:
    found = estimate(samples(-42.0, 100e-6, 1e-3, 0.0, 30.0))
    for moment in (990.0, 1030.0, 1100.0):
        assert found.ours(found.theirs(moment)) == pytest.approx(moment, abs=1e-6)
    assert found.theirs(1060.0) == pytest.approx(1060.0 - 42.0 + 60 * 100e-6, abs=1e-3)


def test_of_a_stretch_the_quickest_exchange_is_believed() -> None:
    slow, quick = ClockSample(0.0, 0.5, 0.5, 1.0), ClockSample(0.1, 0.101, 0.101, 0.102)
    assert best_of_stretches([slow, quick]) == [quick]
    assert best_of_stretches([]) == []
    with pytest.raises(ValueError):
        estimate([])


def test_wall_clocks_differ_by_what_monotonic_ones_do_and_what_is_between_them() -> None:
    one = ClockSample(10.0, 110.0, 110.0, 10.0, wall_ahead=-99.95)
    assert one.wall_offset_s == pytest.approx(0.05)
