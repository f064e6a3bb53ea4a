from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from testbed.link import MTU_FRAME_BYTES
from testbed.trace.mahimahi import DeliverySchedule, parse_mahimahi, schedule_of, write_mahimahi
from testbed.trace.trace import Row, Trace, TraceError
from tests.recorded import RECORDED, needs_recorded

pytestmark = pytest.mark.pure


def test_each_line_is_a_packet_and_the_last_ends_the_lap() -> None:
    schedule = parse_mahimahi(["# a drive", "0", "3", "3", "", " 10"])
    assert schedule == DeliverySchedule((0, 3, 3, 10))
    assert schedule.duration_s == 0.010
    frames = [schedule.by(ms / 1e3) / MTU_FRAME_BYTES for ms in (0, 1, 3, 4, 9, 10)]
    assert frames == [0, 1, 1, 3, 3, 4]


def test_a_step_s_rate_is_its_frames_over_its_length() -> None:
    schedule = DeliverySchedule((*range(0, 100), *range(100, 200, 2), *range(200, 301, 5)))
    rows = schedule.resampled(0.1).trace.rows
    frame_bits = 8 * MTU_FRAME_BYTES
    assert [row.rate_bps for row in rows] == pytest.approx([100 * frame_bits / 0.1, 500 * frame_bits, 210 * frame_bits])


@pytest.mark.parametrize(
    ("lines", "broken"),
    [
        ([], ("empty", None)),
        (["# made here", "3 # and here"], ("number", 2)),
        (["-1"], ("number", 1)),
        (["1.5"], ("number", 1)),
        (["٣"], ("number", 1)),
        (["1" * 13], ("number", 1)),
        (["5", "7", "6"], ("order", 3)),
        (["0", "0"], ("no-time", None)),
    ],
)
def test_a_broken_rule_is_named_with_its_line(lines: list[str], broken: tuple[str, int | None]) -> None:
    with pytest.raises(TraceError) as caught:
        parse_mahimahi(lines)
    assert (caught.value.rule, caught.value.line) == broken


@given(st.text(st.characters() | st.sampled_from("0123456789-.\n"), max_size=60), st.floats(0.001, 100))
@settings(max_examples=150)
def test_any_text_is_a_schedule_or_refused(text: str, step_s: float) -> None:
    try:
        assert parse_mahimahi(text.splitlines()).resampled(step_s).trace.rows
    except TraceError as error:
        assert str(error)


@given(st.lists(st.tuples(st.integers(1, 20), st.floats(1, 50), st.booleans()), min_size=1, max_size=8))
@example([(20, 0.9693272692224496, False), (20, 0.9693272692224496, True)])  # rounded up, shares sum to more
def test_a_trace_as_packets_keeps_its_sum_within_half_a_packet_and_its_length(
    steps: list[tuple[int, float, bool]],
) -> None:
    moments = [0]
    for tenths, _, _ in steps:
        moments.append(moments[-1] + tenths)
    trace = Trace(
        tuple(
            Row(moment / 10, mbps * 1e6, loss=float(lost and moment > 0))
            for moment, (_, mbps, lost) in zip(moments, steps, strict=False)
        )
    )
    carried = sum(
        (row.rate_bps or 0) / 8 * (end - row.time_s) * (row.loss != 1)
        for row, end in zip(trace.rows, [*(row.time_s for row in trace.rows[1:]), trace.duration_s], strict=True)
    )
    schedule = schedule_of(trace)
    assert abs(len(schedule.milliseconds) * MTU_FRAME_BYTES - carried) <= MTU_FRAME_BYTES / 2 + 1e-3
    assert schedule.duration_s == pytest.approx(trace.duration_s, abs=1e-9)


def test_packets_leave_when_the_trace_has_carried_them() -> None:
    frame_s = 8 * MTU_FRAME_BYTES / 1e6  # 12.112 ms at 1 Mbit/s
    rows = (Row(0, 1e6), Row(2 * frame_s, 1e6, loss=1.0), Row(4 * frame_s, 4e6), Row(5 * frame_s, 4e6))
    assert schedule_of(Trace(rows)).milliseconds == (13, 25, *(52, 55, 58, 61), *(64, 67, 70, 73))


def test_a_trace_that_carries_no_packet_or_has_no_rate_is_refused() -> None:
    with pytest.raises(TraceError) as caught:
        schedule_of(Trace((Row(0, 1e3),)))
    assert caught.value.rule == "no-packet"
    with pytest.raises(TraceError) as caught:
        schedule_of(Trace((Row(0, 1e6), Row(1, delay_s=0.1))))
    assert (caught.value.rule, caught.value.given) == ("no-rate", 1)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    schedule = DeliverySchedule((0, 3, 3, 10))
    write_mahimahi(tmp_path / "link.down", schedule)
    assert parse_mahimahi((tmp_path / "link.down").read_text().splitlines()) == schedule


#: File → (packets, period in ms, largest error of windows of 100 ms: what outages are lent).
FILES = {
    "ATT-LTE-driving-2016.down": (45_604, 120_002, 0.002),
    "ATT-LTE-driving-2016.up": (19_101, 120_002, 0.01),
    "Verizon-EVDO-driving.down": (46_065, 1_062_016, 0.07),
}


@needs_recorded
@pytest.mark.parametrize("name", FILES)
def test_recorded_files_are_replayed_without_drift(name: str) -> None:
    packets, period_ms, error = FILES[name]
    schedule = parse_mahimahi((RECORDED / "mahimahi" / name).read_text().splitlines())
    assert (len(schedule.milliseconds), schedule.milliseconds[-1]) == (packets, period_ms)
    resampled = schedule.resampled()
    assert resampled.drift == pytest.approx(0, abs=1e-12)
    assert resampled.trace.duration_s == pytest.approx(period_ms / 1e3)
    assert resampled.error(0.1) <= error
    assert schedule.resampled(1.0).error(1.0) <= error / 2
