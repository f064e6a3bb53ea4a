"""The failure of a process group: an error of its session ends its collectives over gloo as well."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch.distributed as dist

#: The longest wait in seconds for the name of a lost rank. Gloo notices the rank's end within a round trip, and the
#: controller sends its name within another; a busy machine may take some seconds more.
NAME_S = 5.0

#: A part of the text of gloo's errors when a connection ended. The caller causes gloo's other errors.
_CONNECTION = "gloo/transport"


class GroupFailure:
    """The first error of a process group. Any thread may set it, and any thread may wait for it.

    Attributes:
        expected: True once there is a session, which will set the error if a rank goes.
    """

    def __init__(self) -> None:
        self.expected = False
        self._guard = threading.Condition()
        self._error: Exception | None = None
        self._callbacks: list[Callable[[Exception], None]] = []

    @property
    def error(self) -> Exception | None:
        """The error, or None while the group works."""
        return self._error

    def set(self, error: Exception) -> None:
        """Let the group fail. Only the first error counts."""
        with self._guard:
            if self._error is not None:
                return
            self._error = error
            callbacks, self._callbacks = self._callbacks, []
            self._guard.notify_all()
        for call in callbacks:
            call(error)

    def add_callback(self, call: Callable[[Exception], None]) -> None:
        """Call `call` with the error: at once if there is one, otherwise when it is set."""
        with self._guard:
            if self._error is None:
                self._callbacks.append(call)
                return
        call(self._error)

    def remove_callback(self, call: Callable[[Exception], None]) -> None:
        """Remove a callback. No effect if it was called."""
        with self._guard:
            if call in self._callbacks:
                self._callbacks.remove(call)

    def named(self, error: Exception) -> Exception:
        """Return gloo's error, which names an address, with the name of the lost rank.

        Waits up to NAME_S for the name. Returns `error` itself if no connection ended.
        """
        if _CONNECTION not in str(error):
            return error
        with self._guard:
            if self.expected:
                self._guard.wait_for(lambda: self._error is not None, NAME_S)
        return dist.DistBackendError(str(error) if self._error is None else f"{self._error}; gloo: {error}")
