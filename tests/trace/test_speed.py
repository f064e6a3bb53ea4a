from __future__ import annotations

from pathlib import Path

import pytest

from testbed.trace.speed import read_speeds
from testbed.trace.trace import TraceError

pytestmark = pytest.mark.pure


def test_a_trace_of_speed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("# from somewhere\n\ntime_s, speed\n0,1\n 20 , 0.25\n30,1\n")
    assert read_speeds(tmp_path / "a.csv") == ((0.0, 1.0), (20.0, 0.25), (30.0, 1.0))


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("time_s,rate_mbps\n0,1\n", ("header", 1)),
        ("time_s,speed\n0,1\n", ("rows", None)),
        ("time_s,speed\n1,1\n2,1\n", ("begin", 2)),
        ("time_s,speed\n0,1\n0,2\n", ("order", 3)),
        ("time_s,speed\n0,0\n1,1\n", ("range", 2)),
        ("time_s,speed\n0,fast\n1,1\n", ("number", 2)),
        ("time_s,speed\n0,1,2\n1,1\n", ("number", 2)),
        ("time_s,speed\n0,1\nnan,1\n", ("range", 3)),
    ],
)
def test_an_invalid_file_of_speeds_is_refused(text: str, broken: tuple[str | None, int | None], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(TraceError) as caught:
        read_speeds(tmp_path / "a.csv")
    assert caught.value.file == tmp_path / "a.csv"
    assert (caught.value.rule, caught.value.line) == broken
