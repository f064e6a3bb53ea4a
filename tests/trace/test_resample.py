from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.trace.resample import LEAST_BPS, LEAST_STEP_S, MOST_ROWS, Volume, resample
from testbed.trace.trace import TraceError

pytestmark = pytest.mark.pure

STEPS = st.sampled_from([0.02, 0.1, 0.25, 1.0, 3.0])


@st.composite
def volumes(draw: st.DrawFn) -> Volume:
    """Up to forty pieces of any length, some without a byte, of 64 kbit/s or more in the mean."""
    lengths = draw(st.lists(st.integers(1, 3000), min_size=1, max_size=40))
    edges = [sum(lengths[:i]) / 1000 for i in range(len(lengths) + 1)]
    bytes_ = [draw(st.just(0.0) | st.floats(0, 1e7)) for _ in lengths]
    bytes_[draw(st.integers(0, len(lengths) - 1))] += 1.01 * edges[-1] * LEAST_BPS / 8
    return Volume.of_steps(edges, bytes_)


@given(volumes(), STEPS)
def test_the_sum_is_kept_and_no_step_is_below_the_least(volume: Volume, step_s: float) -> None:
    resampled = resample(volume, step_s)
    assert resampled.drift == pytest.approx(0, abs=1e-9)
    assert resampled.trace.duration_s == pytest.approx(volume.duration_s)
    assert all((row.rate_bps or 0) >= LEAST_BPS * (1 - 1e-9) for row in resampled.trace.rows)
    assert 0 <= resampled.error(step_s) <= 2


@given(volumes(), STEPS)
def test_a_step_delivers_what_was_delivered_where_no_step_is_below_the_least(volume: Volume, step_s: float) -> None:
    lifted = [each + 1.01 * volume.duration_s * LEAST_BPS / 8 for each in _differences(volume)]
    steady = Volume.of_steps([i * step_s for i in range(len(lifted) + 1)], [each * step_s + 1e6 for each in lifted])
    assert resample(steady, step_s).error(step_s) == pytest.approx(0, abs=1e-9)


def _differences(volume: Volume) -> list[float]:
    return [b - a for a, b in zip(volume.total, volume.total[1:], strict=False)]


def test_what_an_outage_is_lent_comes_from_the_steps_after_it() -> None:
    least = LEAST_BPS / 8
    rates = [row.rate_bps for row in resample(Volume.of_steps(range(5), [0, 0, least * 2, least * 9]), 1).trace.rows]
    assert rates == [LEAST_BPS] * 3 + [8 * LEAST_BPS]


def test_what_an_outage_at_the_end_is_lent_comes_from_the_beginning() -> None:
    least = LEAST_BPS / 8
    rates = [row.rate_bps for row in resample(Volume.of_steps(range(4), [least * 9, least, 0]), 1).trace.rows]
    assert rates == [8 * LEAST_BPS, LEAST_BPS, LEAST_BPS]


def test_the_error_is_of_the_windows_asked_for() -> None:
    volume = Volume.of_steps(range(5), [1e6, 3e6, 1e6, 3e6])
    resampled = resample(volume, 2)
    assert resampled.error(2) == 0
    assert resampled.error(1) == pytest.approx(0.5)  # 2 MB where there were 1 or 3: 4 of 8 MB are elsewhere


def test_a_remainder_lengthens_the_last_step_or_is_a_shorter_one() -> None:
    for end, starts in ((3.2, [0, 1, 2, 2.6]), (2.7, [0, 1, 2, 2.35]), (3.0, [0, 1, 2])):
        trace = resample(Volume.of_steps((0, end), [1e6]), 1).trace
        assert [row.time_s for row in trace.rows] == pytest.approx(starts)
        assert trace.duration_s == pytest.approx(end)


@pytest.mark.parametrize(
    ("volume", "step_s", "rule"),
    [
        (Volume.of_steps((0, 1), [7_999]), 1, "rate-below"),
        (Volume.of_steps((0, 1), [0]), 1, "rate-below"),
        (Volume.of_steps((0, 1), [1e12]), 1, "rate-above"),
        (Volume.of_steps((0, 1), [1e6]), LEAST_STEP_S / 2, "step-short"),
        (Volume.of_steps((0, 1), [1e6]), float("nan"), "step-short"),
        (Volume.of_steps((0, MOST_ROWS + 1), [1e12]), 1, "step-many"),
    ],
)
def test_what_cannot_be_replayed_is_refused(volume: Volume, step_s: float, rule: str) -> None:
    with pytest.raises(TraceError) as caught:
        resample(volume, step_s)
    assert caught.value.rule == rule
