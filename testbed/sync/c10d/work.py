"""Collectives as c10d's Work, rounds and those over gloo, and the failure of their group.

Gloo reports a dead rank only to its direct peers; ranks that wait for those peers would wait until the timeout. So an
error of the group's session ends its collectives over gloo as well.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from testbed.sync.allreduce import RoundResult
from testbed.sync.executor import Work
from testbed.sync.strategies.strategy import check_whole

#: The timeout that c10d passes for a wait without end.
NO_TIMEOUT = timedelta(0)


class RoundWork(dist.Work):
    """The work of a round under way.

    Python code waits by `wait`; DistributedDataParallel and functional collectives, in C++, by the future.

    Args:
        work: The session's work.
        device: The device of the tensors.
        finish: Turns the mean into the collective's result, and returns the tensors.
        fail: Called with the error if the round fails.
    """

    def __init__(
        self,
        work: Work[RoundResult],
        device: torch.device,
        finish: Callable[[], list[torch.Tensor]],
        fail: Callable[[Exception], None],
    ) -> None:
        super().__init__()
        self._finish = finish
        self._fail = fail
        self._device = device
        self._ended = threading.Event()
        self._error: Exception | None = None
        over = _future_on(device)
        # C++ sees only an error that a callback raises; `set_exception` sets a value that only Python raises.
        self._future = over.then(self._outcome)
        work.then(lambda ended: self._hand_over(ended, over))

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait for the end of the round.

        Args:
            timeout: The longest wait; zero waits without end.

        Raises:
            DistBackendError: The round failed, or did not end in time.
        """
        seconds = timeout.total_seconds()
        if not self._ended.wait(seconds if seconds > 0 else None):
            raise dist.DistBackendError(f"the sum did not end within {seconds:g} s")
        if self._error is not None:
            raise self._error
        self._future.wait()  # makes a device's current stream wait as well
        return True

    def synchronize(self) -> None:
        """Wait for the end of the round, without a timeout."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether the round has ended."""
        return self._ended.is_set()

    def is_success(self) -> bool:
        """Return whether the round has ended without an error."""
        return self._ended.is_set() and self._error is None

    def exception(self) -> Exception | None:
        """Return the round's error, or None."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """Wait for the end of the round, and return the collective's tensors."""
        self.wait()
        return self._future.value()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return the future of the collective's tensors, for code in C++."""
        return self._future

    def _hand_over(self, ended: Work[RoundResult], over: torch.futures.Future[list[torch.Tensor]]) -> None:
        """End the work on a thread of its own: a callback of the future may wait for a later round.

        PowerSGD's hook does so. The thread that ended this round ends the later ones, too.
        """
        try:
            threading.Thread(target=self._end, args=(ended, over), name="wan-end", daemon=True).start()
        except RuntimeError:  # no other thread can be started
            self._end(ended, over)

    def _end(self, ended: Work[RoundResult], over: torch.futures.Future[list[torch.Tensor]]) -> None:
        """End the work, with the collective's tensors or the round's error."""
        try:
            check_whole(ended.wait())
            with _beside(self._device):
                over.set_result(self._finish())
        except Exception as error:  # any error must be raised where the caller waits
            self._error = dist.DistBackendError(str(error) or "the process group was shut down")
            self._fail(error)
            over.set_result([])
        self._ended.set()

    def _outcome(self, over: torch.futures.Future[list[torch.Tensor]]) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return over.value()


def _future_on(device: torch.device) -> torch.futures.Future[Any]:
    return torch.futures.Future(devices=[device] if device.type == "cuda" else None)


def _beside(device: torch.device) -> AbstractContextManager[object]:
    """Return a context with a stream of its own, whose work does not wait for the caller's later work on the device."""
    if device.type != "cuda":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]


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
        """Return gloo's error, or that of the group if it ended the collective; None without an error."""
        error, failure = self._work.exception(), self._failure.error
        if error is None and failure is not None and not self._work.is_completed():
            return dist.DistBackendError(str(failure))
        return error

    def result(self) -> list[torch.Tensor]:
        """Wait for the end of the collective, and return its tensors."""
        self.wait()
        return self._work.result()

    def get_future(self) -> torch.futures.Future[Any]:
        """Return the future of the collective's tensors, for code in C++."""
        with self._guard:
            if self._future is not None:
                return self._future
            self._over = _future_on(self._device)
            # C++ sees only an error that a callback raises.
            self._future = future = self._over.then(self._outcome)
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
