"""A collective over gloo as c10d's Work: it ends with an error when the group fails.

Gloo reports a dead rank only to its direct peers; ranks that wait for those peers would wait until the timeout.
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from testbed.sync.c10d.group_failure import GroupFailure
from testbed.sync.c10d.work import NO_TIMEOUT

#: Seconds between two checks of a waiting thread whether the group has failed.
LOOK_S = 0.2


class GlooWork(dist.Work):
    """Gloo's work, which also ends when the group fails.

    Args:
        work: The work that gloo returned.
        device: The device of the collective's tensors.
        failure: The failure of the process group.
    """

    def __init__(self, work: dist.Work, device: torch.device, failure: GroupFailure) -> None:
        super().__init__()
        self._work = work
        self._device = device
        self._failure = failure
        self._guard = threading.Lock()
        self._future: torch.futures.Future[Any] | None = None
        self._over: torch.futures.Future[Any] | None = None
        self._error: Exception | None = None

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait for the end of the collective.

        Args:
            timeout: The longest wait; zero waits without end.

        Raises:
            DistBackendError: A rank is gone. Other errors are gloo's own.
        """
        seconds = timeout.total_seconds()
        deadline = time.monotonic() + seconds if seconds > 0 else float("inf")
        while True:
            now = time.monotonic()
            look_s = min(max(deadline - now, 1e-3), LOOK_S)
            try:
                self._work.wait(timedelta(seconds=look_s))
            except RuntimeError as error:
                # `is_completed` does not help: a reduce-scatter's work never returns True, and raises each time.
                if time.monotonic() < now + look_s:
                    raise self._failure.named(error) from None
                if self._failure.error is not None:
                    raise dist.DistBackendError(str(self._failure.error)) from None
                if time.monotonic() >= deadline:
                    raise
            else:
                return True

    def synchronize(self) -> None:
        """Wait for the end of the collective, without a timeout."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether the collective has ended, or the group has failed."""
        return self._work.is_completed() or self._failure.error is not None

    def is_success(self) -> bool:
        """Return whether the collective has ended without an error."""
        return self._work.is_completed() and self._work.is_success()

    def exception(self) -> Any:
        """Return gloo's error, or None."""
        return self._work.exception()

    def result(self) -> list[torch.Tensor]:
        """Wait for the end of the collective, and return its tensors."""
        self.wait()
        return self._work.result()

    def get_future(self) -> torch.futures.Future[Any]:
        """Return the future of the collective's tensors, for code in C++."""
        with self._guard:
            if self._future is not None:
                return self._future
            over: torch.futures.Future[Any] = torch.futures.Future(
                devices=[self._device] if self._device.type == "cuda" else None
            )
            self._over = over
            # C++ sees only an error that a callback raises.
            self._future = future = over.then(self._outcome)
        self._failure.add_callback(self._failed)  # first: if gloo has ended already, `_ended` removes it at once
        self._work.get_future().then(self._ended)
        return future

    def _ended(self, future: torch.futures.Future[Any]) -> None:
        """End with gloo's result or error. Called on gloo's thread."""
        self._failure.remove_callback(self._failed)
        try:
            self._end(future.value(), None)
        except RuntimeError as error:
            self._end([], self._failure.named(error))

    def _failed(self, error: Exception) -> None:
        self._end([], dist.DistBackendError(str(error)))

    def _end(self, value: Any, error: Exception | None) -> None:
        with self._guard:
            over, self._over = self._over, None
            if over is None:
                return
            self._error = error
        over.set_result(value)

    def _outcome(self, over: torch.futures.Future[Any]) -> Any:
        if self._error is not None:
            raise self._error
        return over.value()
