"""The lanes of `python -m tests` end with it, after their tests have cleaned up."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests import __main__ as program
from tests.waiting import until

pytestmark = pytest.mark.local

#: Runs until it is interrupted, and makes a file as it ends.
CLEANS_UP = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
finally:
    Path(sys.argv[1]).touch()
"""

IGNORES = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""


def interrupted(lane: program.Lane) -> int:
    """Run a lane, and leave it as Ctrl-C does. Returns the lane's exit code."""
    with pytest.raises(KeyboardInterrupt), program._started((lane,)) as running:
        until(lambda: "ready" in lane.log.read_text())
        raise KeyboardInterrupt
    return int(running[lane].returncode)


def test_an_interrupted_lane_cleans_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "LOGS", tmp_path)
    interrupted(program.Lane("cleans up", (sys.executable, "-c", CLEANS_UP, str(tmp_path / "clean"))))
    assert (tmp_path / "clean").exists()


def test_a_lane_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "LOGS", tmp_path)
    monkeypatch.setattr(program, "END_S", 0.0)
    assert interrupted(program.Lane("ignores", (sys.executable, "-c", IGNORES))) == -signal.SIGKILL
