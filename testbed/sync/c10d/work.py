"""A round as c10d's Work: it ends when the tensors hold the result, and its error is of c10d's type."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta

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
        over: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future(
            devices=[device] if device.type == "cuda" else None
        )
        # C++ sees only an error that a callback raises; `set_exception` sets a value that only Python raises.
        self._future = over.then(self._outcome)
        work.then(lambda ended: self._end(ended, over))

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

    def _end(self, ended: Work[RoundResult], over: torch.futures.Future[list[torch.Tensor]]) -> None:
        """End the work. Called on the thread that ended the round."""
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


def _beside(device: torch.device) -> AbstractContextManager[object]:
    """Return a context with a stream of its own, whose work does not wait for the caller's later work on the device."""
    if device.type != "cuda":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
