"""What the threads of a group wait for, and what ends all their waiting."""

from __future__ import annotations

import threading

from testbed.sync.errors import SyncError


class RoundProgress:
    """`changed` guards a group's rounds, and is notified when something about them changes. `started` is set once the
    group has a round to begin with; until then frames wait. `failure` ends every round and every wait."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.started = threading.Event()
        self.failure: SyncError | None = None

    def check(self) -> None:
        """Raise the failure, if there is one."""
        if self.failure is not None:
            raise self.failure

    def notify(self) -> None:
        """Something changed."""
        with self.changed:
            self.changed.notify_all()

    def fail(self, error: SyncError) -> None:
        """End the round that is on, and every later one, with an error; the first one counts."""
        with self.changed:
            if self.failure is None:
                self.failure = error
            self.changed.notify_all()
