"""Waiting for what comes by itself, as long as a busy machine may take."""

from __future__ import annotations

import time
from collections.abc import Callable

DEADLINE_S = 60.0
POLL_S = 0.005


def until(holds: Callable[[], bool], timeout_s: float = DEADLINE_S) -> None:
    """Until it holds. AssertionError when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"it did not hold within {timeout_s:g} s"
        time.sleep(POLL_S)
