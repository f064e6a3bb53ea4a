from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testbed.trace.read import format_of, read_trace
from testbed.trace.trace import TraceError

pytestmark = pytest.mark.pure

IPERF3 = '{"intervals": [{"sum": {"start": 0, "end": 2, "bytes": 1448000}}]}'


@pytest.mark.parametrize(
    ("name", "text", "format_"),
    [
        ("a.csv", "0\n1\n", "csv"),
        ("a.JSON", "", "iperf3"),
        ("a.down", "", "mahimahi"),
        ("a.up", "time_s,rate_mbps", "mahimahi"),
        ("a.mahimahi", "", "mahimahi"),
        ("a", "\n {\n", "iperf3"),
        ("a.txt", "17\n18\n", "mahimahi"),
        ("a.trace", "# from there\ntime_s,rate_mbps\n", "csv"),
        ("a", "0,40\n", "csv"),
        ("a", "", "csv"),
    ],
)
def test_the_suffix_tells_the_format_and_else_the_content(name: str, text: str, format_: str) -> None:
    assert format_of(Path(name), text) == format_


def test_each_format_becomes_rows_with_the_end_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("time_s,rate_mbps\n0,4\n1,5\n")
    (tmp_path / "a.down").write_text("".join(f"{ms}\n" for ms in range(0, 1001, 5)))
    (tmp_path / "a.json").write_text(IPERF3)
    csv, packets, measured = (read_trace(tmp_path / name, "stop") for name in ("a.csv", "a.down", "a.json"))
    assert [each.trace.end for each in (csv, packets, measured)] == ["stop"] * 3
    assert csv.resampled is None
    assert packets.resampled is not None
    assert measured.resampled is not None
    assert (packets.resampled.step_s, len(packets.trace.rows)) == (0.1, 10)
    assert measured.resampled.step_s == 2
    assert len(read_trace(tmp_path / "a.down", step_s=0.5).trace.rows) == 2
    assert len(read_trace(tmp_path / "a.json", step_s=0.5).trace.rows) == 4


@pytest.mark.parametrize(
    ("name", "text", "step_s", "rule"),
    [
        ("a.csv", "time_s,rate_mbps\n0,4\n", 0.1, "no-step"),
        ("a.down", "0\nx\n", None, "number"),
        ("a.down", "0\n100000\n", None, "rate-below"),
        ("a.json", "{", None, "json"),
        ("a.json", IPERF3, 1e-9, "step-short"),
    ],
)
def test_a_fault_is_named_with_the_file(name: str, text: str, step_s: float | None, rule: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(TraceError) as caught:
        read_trace(tmp_path / name, step_s=step_s)
    assert caught.value.file == tmp_path / name
    assert caught.value.rule == rule


@given(content=st.binary(max_size=60), name=st.sampled_from(["a", "a.csv", "a.json", "a.down"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_file_is_a_trace_or_refused(content: bytes, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    try:
        assert read_trace(tmp_path / name).trace.rows
    except TraceError as error:
        assert str(error).startswith(str(tmp_path / name))
