"""Holds tests marked `pure` to their mark: one that uses the outside world fails at the line that does so."""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).resolve().parents[1])
#: The environment may be a link, in a worktree for example: files are named by the path that they were imported from.
INSTALLED = (sys.prefix, str(Path(sys.prefix).resolve()))

#: Audit events of what a pure test has none of (docs.python.org/3/library/audit_events.html).
EVENTS = {
    "socket.__new__": "makes a socket",
    "subprocess.Popen": "starts a process",
    "os.fork": "starts a process",
    "os.posix_spawn": "starts a process",
    "os.system": "starts a process",
}

#: Python's clocks. Libraries may read them (pytest and hypothesis measure durations); this project's code may not.
CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")


class ImpureError(BaseException):
    """A pure test used what its mark rules out. No `except Exception` of the code under test may hide this error."""


class PurityGuard:
    """Raises ImpureError from wherever a test uses a thread, a socket, a process, a sleep or a clock, while `on`."""

    def __init__(self) -> None:
        self.on = False

    def install(self) -> None:
        """Watch this interpreter. An audit hook cannot be removed again."""
        sys.addaudithook(self._audit)
        for name in CLOCKS:
            setattr(time, name, self._guarded(name, getattr(time, name)))
        os.fsync = self._left_out(os.fsync)
        # Python 3.11 has no audit event for these two.
        time.sleep = self._barred("sleeps", time.sleep)
        start_thread = self._barred("starts a thread", _thread.start_new_thread)
        _thread.start_new_thread = threading._start_new_thread = start_thread  # type: ignore[attr-defined]

    def _audit(self, event: str, _: tuple[Any, ...]) -> None:
        if self.on and event in EVENTS:
            self._fail(EVENTS[event])

    def _barred(self, what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if self.on:
                self._fail(what)
            return function(*arguments)

        return call

    def _left_out(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, which does nothing in a pure test.

        Files of tests need not outlive a power failure. Where other work writes to the disk, each sync waits for it:
        840 of them took 10 s of a file's 220.
        """
        return lambda *arguments: None if self.on else function(*arguments)

    def _guarded(self, name: str, clock: Callable[[], Any]) -> Callable[[], Any]:
        def read() -> Any:
            if self.on:
                code = sys._getframe(1).f_code
                ours = code.co_filename.startswith(ROOT) and not code.co_filename.startswith(INSTALLED)
                if ours and code.co_name != "<module>":  # whichever test happens to import the module first
                    self._fail(f"reads time.{name}")
            return clock()

        read.__name__ = name
        return read

    def _fail(self, what: str) -> None:
        self.on = False
        raise ImpureError(f"a test marked `pure` {what}: mark it `local`, or give the code under test a clock")
