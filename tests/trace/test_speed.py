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
    ("text", "said"),
    [
        ("time_s,rate_mbps\n0,1\n", "line 1: the header must be `time_s,speed`"),
        ("time_s,speed\n0,1\n", "has 1 rows"),
        ("time_s,speed\n1,1\n2,1\n", "line 2: the first row is at 1 s"),
        ("time_s,speed\n0,1\n0,2\n", "line 3: time 0 s does not come after 0 s"),
        ("time_s,speed\n0,0\n1,1\n", "line 2: speed 0 must be between"),
        ("time_s,speed\n0,fast\n1,1\n", "line 2: '0,fast' is not two numbers"),
        ("time_s,speed\n0,1,2\n1,1\n", "line 2: '0,1,2' is not two numbers"),
        ("time_s,speed\n0,1\nnan,1\n", "line 3: "),
    ],
)
def test_what_is_none(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(TraceError, match=r"a\.csv: ") as caught:
        read_speeds(tmp_path / "a.csv")
    assert said in str(caught.value)
