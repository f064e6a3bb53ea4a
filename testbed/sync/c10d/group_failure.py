"""Why a process group is of no further use: what its session knows ends what goes over gloo as well."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch.distributed as dist

#: A rank's end comes to the others' gloo within a round trip, and by way of the controller, which has the name, within
#: another; a machine that is busy may take some seconds for it.
NAME_S = 5.0

#: What gloo's errors have in them where a connection ended. All others are the caller's.
_CONNECTION = "gloo/transport"


class GroupFailure:
    """The first error counts. Any thread may say it, and each waits for it here.

    It is `expected` from when there is somebody who will say it.
    """

    def __init__(self) -> None:
        self.expected = False
        self._guard = threading.Condition()
        self._error: Exception | None = None
        self._told: list[Callable[[Exception], None]] = []

    @property
    def error(self) -> Exception | None:
        """What it failed by; None as long as it has not."""
        return self._error

    def set(self, error: Exception) -> None:
        """The group has failed."""
        with self._guard:
            if self._error is not None:
                return
            self._error = error
            told, self._told = self._told, []
            self._guard.notify_all()
        for call in told:
            call(error)

    def tell(self, call: Callable[[Exception], None]) -> None:
        """Have `call` called with the error, at once where there is one."""
        with self._guard:
            if self._error is None:
                self._told.append(call)
                return
        call(self._error)

    def tell_not(self, call: Callable[[Exception], None]) -> None:
        """Forget what was to be called."""
        with self._guard:
            if call in self._told:
                self._told.remove(call)

    def named(self, error: Exception) -> Exception:
        """An error of gloo's, which names an address, with the name of the rank that has gone, where it is to be had
        within NAME_S."""
        if _CONNECTION not in str(error):
            return error
        with self._guard:
            if self.expected:
                self._guard.wait_for(lambda: self._error is not None, NAME_S)
        return dist.DistBackendError(str(error) if self._error is None else f"{self._error}; gloo: {error}")
