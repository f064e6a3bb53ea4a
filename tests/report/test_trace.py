"""Traces in the terminal and as pictures, and those that runs measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.report.record import RunRecord
from testbed.report.run_files import TrafficRecord
from testbed.report.trace import HEIGHT, WIDTH, error_of, measured_trace, save_trace, sketch
from testbed.trace.csv import columns_of
from testbed.trace.mahimahi import DeliverySchedule
from testbed.trace.resample import LEAST_BPS, Resampled
from testbed.trace.trace import Row, Trace, TraceError, lasting

pytestmark = pytest.mark.pure

STAIRS = Trace((Row(0, 12e6), Row(1, 6e6), Row(2, None)))


def test_a_sketch_shows_each_part_of_the_time_by_its_mean() -> None:
    lines = list(sketch(next(columns_of(STAIRS))))
    bars = [line.partition("┤")[2] for line in lines[:HEIGHT]]
    third = WIDTH // 3
    assert {bar[:third] for bar in bars} == {"█" * third}
    assert [bar[third] for bar in bars] == [" "] * (HEIGHT // 2) + ["█"] * (HEIGHT // 2)
    assert {bar[2 * third :] for bar in bars} == {" " * third}
    assert lines[0].split()[0] == "12"
    assert lines[-1].startswith("rate_mbps └")
    assert lines[-1].endswith("3 s")


def test_a_column_of_zeros_is_flat() -> None:
    lines = list(sketch(next(columns_of(Trace((Row(0, loss=0.0),))))))
    assert "█" not in "".join(lines)


@pytest.mark.parametrize(("duration_ms", "shown"), [(10_000, True), (10_001_000, False)])
def test_the_error_in_tenths_of_a_step_is_shown_where_these_are_few(duration_ms: int, shown: bool) -> None:
    source = DeliverySchedule((duration_ms // 2, duration_ms))
    text = error_of(Resampled(Trace(lasting((Row(0.0, 64e3),), source.duration_s)), 0.1, source))
    assert "a step" in text
    assert ("tenths" in text) == shown


def test_a_picture_is_a_png(tmp_path: Path) -> None:
    save_trace(STAIRS, "stairs", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_trace_without_values_has_no_picture(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as caught:
        save_trace(Trace((Row(0), Row(1))), "nothing", tmp_path / "a.png")
    assert caught.value.rule == "no-values"
    assert not any(tmp_path.iterdir())


def record(*samples: tuple[float, int, float]) -> RunRecord:
    """Return a run with samples of one link: (time, steady bytes, steady seconds)."""
    taken = tuple(
        TrafficRecord(at, {"a->b": bytes_}, {}, None, {"a->b": bytes_}, {"a->b": busy}) for at, bytes_, busy in samples
    )
    nothing: dict[str, tuple[()]] = {}
    return RunRecord(Path("runs/x"), {}, {}, nothing, taken, (), (), (), (), {}, 0.0, ())


def test_what_was_measured_is_known_only_while_the_queue_was_backlogged() -> None:
    run = record(
        (-1, 0, 0),
        (0, 1_000_000, 0.1),  # before training began
        (1, 1_500_000, 0.14),  # the link was idle nearly all the time
        (2, 2_750_000, 1.14),  # 10 Mbit/s all the time
        (3, 3_000_000, 1.18),
        (4, 3_500_000, 1.68),  # 8 Mbit/s half of the time
        (5, 3_500_000, 2.68),  # nothing came through
        (6, 3_600_000, 2.72),
    )
    trace, _ = measured_trace(run, "a->b")
    expected = ((0, 10e6), (1, 10e6), (3, 8e6), (4, LEAST_BPS))
    assert [(row.time_s, row.rate_bps) for row in trace.rows[:4]] == [(at, pytest.approx(r)) for at, r in expected]
    assert trace.duration_s == 6


def test_a_link_that_was_never_busy_or_is_not_there_is_refused() -> None:
    run = record((0, 0, 0), (1, 500_000, 0.04))
    with pytest.raises(TraceError) as caught:
        measured_trace(run, "a->b")
    assert (caught.value.rule, caught.value.link) == ("no-rate", "a->b")
    with pytest.raises(TraceError) as caught:
        measured_trace(run, "b->a")
    assert (caught.value.rule, caught.value.link) == ("unknown-link", "b->a")
    with pytest.raises(TraceError) as caught:
        measured_trace(record(), "a->b")
    assert caught.value.rule == "unknown-link"
