"""A collective that goes over gloo, as c10d's Work: the group's failure ends it too.

Gloo alone tells of a rank's end those that wait for that rank. Who waits for them would wait until the timeout.
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

#: How often who waits looks whether the group has failed.
LOOK_S = 0.2


class GlooWork(dist.Work):
    """`work`, which is gloo's, of tensors on a `device`, in a group with this `failure`."""

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
        """Wait for the end. DistBackendError where a rank is gone, gloo's own error otherwise."""
        seconds = timeout.total_seconds()
        deadline = time.monotonic() + seconds if seconds > 0 else float("inf")
        while True:
            now = time.monotonic()
            look_s = min(max(deadline - now, 1e-3), LOOK_S)
            try:
                self._work.wait(timedelta(seconds=look_s))
            except RuntimeError as error:
                # Not by `is_completed`: a reduce-scatter's work never says so, and raises its error each time.
                if time.monotonic() < now + look_s:
                    raise self._failure.named(error) from None
                if self._failure.error is not None:
                    raise dist.DistBackendError(str(self._failure.error)) from None
                if time.monotonic() >= deadline:
                    raise
            else:
                return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._work.is_completed() or self._failure.error is not None

    def is_success(self) -> bool:
        return self._work.is_completed() and self._work.is_success()

    def exception(self) -> Any:
        return self._work.exception()

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._work.result()

    def get_future(self) -> torch.futures.Future[Any]:
        with self._guard:
            if self._future is not None:
                return self._future
            over: torch.futures.Future[Any] = torch.futures.Future(
                devices=[self._device] if self._device.type == "cuda" else None
            )
            self._over = over
            # Only an error that a callback raises is one for C++.
            self._future = future = over.then(self._outcome)
        self._failure.tell(self._failed)  # first: where gloo is done already, this is taken back at once
        self._work.get_future().then(self._ended)
        return future

    def _ended(self, future: torch.futures.Future[Any]) -> None:
        """Gloo is done with it: on gloo's thread."""
        self._failure.tell_not(self._failed)
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
