"""Waiting for what comes by itself, as long as a busy machine may take."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

DEADLINE_S = 60.0
POLL_S = 0.005


def until(holds: Callable[[], bool], timeout_s: float = DEADLINE_S) -> None:
    """Until it holds. AssertionError when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"it did not hold within {timeout_s:g} s"
        time.sleep(POLL_S)


def stop(pid: int) -> None:
    """Stop a process, and return once all of its threads have. A busy machine lets others of them go on meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: all(_state(thread) in "TZ" for thread in Path(f"/proc/{pid}/task").iterdir()))


def _state(thread: Path) -> str:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"  # it has ended
