"""Says something now and then while rounds are on: who waits for the end of a slow one hears of its cause too late."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from testbed.sync.transport import CLOSE_S

#: Seconds between two times. They are the same ones for all members, as far as clocks agree: what one says is held
#: against what others say.
EACH_S = 0.25


class Meanwhile:
    """Calls `say` on a thread of its own, each EACH_S while rounds are on, once they are for that long.

    Any thread may call.
    """

    def __init__(self, name: str, say: Callable[[], None]) -> None:
        self._say = say
        self._changed = threading.Condition()
        self._on = 0
        self._since_s = 0.0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"{name}: meanwhile", daemon=True)
        self._thread.start()

    def begins(self) -> None:
        """A round does; the one before may not be over."""
        with self._changed:
            if not self._on:
                self._since_s = time.monotonic()
                self._changed.notify()
            self._on += 1

    def ends(self) -> None:
        """A round does."""
        with self._changed:
            self._on -= 1

    def close(self) -> None:
        """Say nothing any more."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while self._await():
            self._say()

    def _await(self) -> bool:
        """Wait until something is to be said; False when nothing will be."""
        with self._changed:
            while not self._closed:
                if not self._on:
                    self._changed.wait()
                    continue
                woken = self._changed.wait(EACH_S - time.time() % EACH_S)
                if not woken and self._on and time.monotonic() - self._since_s >= EACH_S:
                    return True
            return False
