"""The failure of a process group: an error of its session ends its collectives over gloo as well."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch.distributed as dist

#: The longest wait in seconds for the name of a rank that has gone. Gloo notices its end within a round trip, and the
#: controller sends its name within another; a busy machine may take some seconds for it.
NAME_S = 5.0

#: Part of the text of gloo's errors where a connection ended. Gloo's other errors are the caller's.
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
        self._told: list[Callable[[Exception], None]] = []

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
            told, self._told = self._told, []
            self._guard.notify_all()
        for call in told:
            call(error)

    def tell(self, call: Callable[[Exception], None]) -> None:
        """Call `call` with the error when there is one; at once if there is one already."""
        with self._guard:
            if self._error is None:
                self._told.append(call)
                return
        call(self._error)

    def tell_not(self, call: Callable[[Exception], None]) -> None:
        """Take back a call of `tell`."""
        with self._guard:
            if call in self._told:
                self._told.remove(call)

    def named(self, error: Exception) -> Exception:
        """Return gloo's error, which names an address, with the name of the rank that has gone.

        Waits up to NAME_S for the name. Returns `error` itself if no connection ended.
        """
        if _CONNECTION not in str(error):
            return error
        with self._guard:
            if self.expected:
                self._guard.wait_for(lambda: self._error is not None, NAME_S)
        return dist.DistBackendError(str(error) if self._error is None else f"{self._error}; gloo: {error}")
