"""Reports during long rounds, so that the controller can react before a slow round ends."""

from __future__ import annotations

import threading
from collections.abc import Callable

from testbed.sync.clock import SYSTEM, Clock
from testbed.sync.transport import CLOSE_S

#: Seconds between two reports. All members report at multiples of it, as far as their clocks agree, because the
#: controller compares reports of the same time.
EACH_S = 0.25


class ProgressReporter:
    """Calls a function each EACH_S while rounds run, beginning EACH_S after the first of them began.

    Any thread may call the methods.

    Args:
        report: The function, called on the reporter's thread.
        clock: The clock by which reports are due.
    """

    def __init__(self, report: Callable[[], None], clock: Clock = SYSTEM) -> None:
        self._report = report
        self._clock = clock
        self._changed = threading.Condition()
        self._rounds = 0
        self._since_s = 0.0
        self._closed = False
        self._thread: threading.Thread | None = None

    def start(self, member: str) -> None:
        """Start to report, on a thread."""
        self._thread = threading.Thread(target=self.run, name=f"{member}: progress", daemon=True)
        self._thread.start()

    def round_began(self) -> None:
        """Record that a round began; the previous one may still be running."""
        with self._changed:
            if not self._rounds:
                self._since_s = self._clock.monotonic()
                self._changed.notify()
            self._rounds += 1

    def round_ended(self) -> None:
        """Record that a round ended."""
        with self._changed:
            self._rounds -= 1

    def close(self) -> None:
        """Stop reporting. Waits up to CLOSE_S for a report that is being made."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def run(self) -> None:
        """Report until `close`."""
        while self._wait():
            self._report()

    def _wait(self) -> bool:
        """Wait until a report is due. Returns False after `close`."""
        with self._changed:
            while not self._closed:
                self._clock.wait_for(self._changed, lambda: self._closed or self._rounds > 0)
                left_s = EACH_S - self._clock.unix() % EACH_S
                idle_or_closed = self._clock.wait_for(self._changed, lambda: self._closed or not self._rounds, left_s)
                if not idle_or_closed and self._clock.monotonic() - self._since_s >= EACH_S:
                    return True
            return False
