"""Whether the Docker engine still answers, asked from a thread of its own: an engine that hangs must hold up nobody."""

from __future__ import annotations

import threading
import time

from testbed.emulation.containers import engine

#: An engine answers a ping in a millisecond. One that is restarted is away for some seconds, and containers may outlive
#: that.
SILENT_S = 20.0

#: How often it is asked, and how long is waited for an answer.
ASK_S = 2.0
ANSWER_S = 5


class EngineWatch:
    """Asks from `start` to `stop`. Silence begins with an answer that does not come: while this process itself is
    stopped, nobody asks."""

    def __init__(self) -> None:
        self._closed = threading.Event()
        self._silent_since: float | None = None
        self._complaint = ""
        self._thread = threading.Thread(target=self._ask, name="engine watch", daemon=True)

    @property
    def failure(self) -> str | None:
        """Why a run can't go on; None while the engine answers, or has been silent for a short time."""
        since = self._silent_since
        if since is None or (silent_s := time.monotonic() - since) < SILENT_S:
            return None
        return f"the Docker engine at {engine.address()} has not answered for {silent_s:.0f} s ({self._complaint})"

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """End it, or leave it to its last answer."""
        self._closed.set()
        self._thread.join(ANSWER_S)

    def _ask(self) -> None:
        while not self._closed.wait(ASK_S):
            asked = time.monotonic()
            try:
                client = engine.client_of(engine.address(), timeout=ANSWER_S)
                try:
                    client.ping()
                finally:
                    client.close()
                self._silent_since = None
            except engine.ENGINE_ERRORS as error:
                self._complaint = str(error)
                self._silent_since = self._silent_since or asked
