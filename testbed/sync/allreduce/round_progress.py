"""What the threads of a group wait for, and what ends all their waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable

from testbed.sync.errors import SyncError


class RoundProgress:
    """`changed` guards a group's rounds, and is notified when something about them changes. `started` is set once the
    group has a round to begin with; until then frames wait. `failure` ends every round and every wait."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.started = threading.Event()
        self.failure: SyncError | None = None
        self._told: list[Callable[[SyncError], None]] = []

    def check(self) -> None:
        """Raise the failure, if there is one."""
        if self.failure is not None:
            raise self.failure

    def notify(self) -> None:
        """Something changed."""
        with self.changed:
            self.changed.notify_all()

    def on_failure(self, call: Callable[[SyncError], None]) -> None:
        """Have `call` called with the failure, at once where there is one; else on the thread that brings it."""
        with self.changed:
            if self.failure is None:
                self._told.append(call)
                return
        call(self.failure)

    def fail(self, error: SyncError) -> None:
        """End the round that is on, and every later one, with an error; the first one counts."""
        with self.changed:
            told, self._told = self._told, []
            if self.failure is None:
                self.failure = error
            self.changed.notify_all()
        for call in told:
            call(error)
