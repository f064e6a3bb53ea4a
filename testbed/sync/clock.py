"""The clock of members, by which they read time and wait: the machine's, or a simulated one in tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Reads time, waits for conditions, and calls functions later."""

    def unix(self) -> float:
        """Return Unix time in seconds. It jumps when somebody sets the clock."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary moment. They never jump."""

    def wait_for(self, changed: threading.Condition, holds: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until `holds()` is true, and return its last result.

        Args:
            changed: The condition that `holds` depends on. The caller has acquired it.
            holds: Called again whenever `changed` is notified.
            timeout_s: The longest wait in seconds, or None for no limit.
        """

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call `call` after `seconds`, perhaps on another thread."""


class SystemClock:
    """The machine's clocks. A timer thread makes each later call."""

    def unix(self) -> float:
        """Return Unix time in seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds since the machine's start."""
        return time.monotonic()

    def wait_for(self, changed: threading.Condition, holds: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until `holds()` is true, and return its last result."""
        return changed.wait_for(holds, timeout_s)

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call `call` after `seconds` on a thread of its own."""
        timer = threading.Timer(seconds, call)
        timer.daemon = True
        timer.start()


SYSTEM = SystemClock()
