"""Waiting for an event, as long as a busy machine may take."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

#: Seconds within which what a test waits for happens, or the test fails. The longest of it, a run beside other work on
#: two busy cores, takes two minutes. TESTBED_TEST_PATIENCE multiplies it: 3 on a slow host, 0.1 to find hangs quickly.
PATIENCE_S = 300.0 * float(os.environ.get("TESTBED_TEST_PATIENCE", "1"))
POLL_S = 0.005


def until(holds: Callable[[], bool], state: Callable[[], str] = lambda: "") -> None:
    """Wait until `holds()`.

    Raises:
        AssertionError: It does not hold within PATIENCE_S; has the `state()` at that time.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"it did not hold within {PATIENCE_S:g} s {state()}"
        time.sleep(POLL_S)


async def happens(holds: Callable[[], bool]) -> None:
    """Run the event loop until `holds()`. Raises TimeoutError after PATIENCE_S."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(POLL_S)


def stop(pid: int) -> None:
    """Stop a process, and return when all of its threads have stopped, which takes time on a busy machine."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: all(_state(thread) in "TZ" for thread in Path(f"/proc/{pid}/task").iterdir()))


def _state(thread: Path) -> str:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"  # it has ended
