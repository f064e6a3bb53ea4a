"""Threads of a member: a start with a clear error, callbacks, and an executor of rounds beside the caller's work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, Generic, ParamSpec, TypeVar
from weakref import WeakMethod

from testbed.sync.errors import SyncError

P = ParamSpec("P")
T = TypeVar("T")


def start(thread: threading.Thread) -> None:
    """Start a thread, or raise SyncError with the limit that forbids it.

    Raises:
        SyncError: The container or the host does not allow another thread.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise SyncError(
            f"the thread `{thread.name}` could not be started: the limit on processes and threads is reached; raise "
            "the limit (pids of the container, ulimit -u), or end other processes"
        ) from error


def weakly(method: Callable[P, T]) -> Callable[P, T | None]:
    """Return a function that calls a bound method. It returns None after the method's object is gone.

    With it, the parts of an object call the object without a cycle of references. Python collects old cycles rarely,
    so ended groups stayed in memory: 80 KB for each lost member.
    """
    reference = WeakMethod(method)

    def call(*arguments: P.args, **named: P.kwargs) -> T | None:
        found = reference()
        return None if found is None else found(*arguments, **named)

    return call


class Work(Generic[T]):
    """A handle on an asynchronous round, as `torch.distributed`'s Work. Leave the tensor alone until `wait` returns."""

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def wait(self) -> T:
        """Wait until the round has ended, and return its result.

        Raises:
            SyncError: The round failed.
        """
        return self._future.result()

    def then(self, call: Callable[[Work[T]], None]) -> None:
        """Call `call(work)` when the round has ended: on the thread that ended it, or at once if it has ended."""
        self._future.add_done_callback(lambda _: call(self))


class AsyncExecutor:
    """Starts jobs on one thread and ends them on another, each in the order given: a job may start while one ends.

    The threads are created by the first `begin`. Only one thread may call `begin`.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._pools: tuple[ThreadPoolExecutor, ThreadPoolExecutor] | None = None
        self._last: Future[Any] | None = None

    def begin(self, start: Callable[[], Callable[[], T]]) -> Work[T]:
        """Queue a job in two parts, and return the handle on its result.

        Args:
            start: Called after the `start` of all earlier jobs. Returns the job's second part, which is called after
                the second parts of all earlier jobs. The result of the second part is the work's.
        """
        if self._pools is None:
            starts, ends = (ThreadPoolExecutor(1, thread_name_prefix=f"{self._name} {part}") for part in ("on", "off"))
            self._pools = starts, ends
        starting, ending = self._pools
        started = starting.submit(start)

        def end() -> T:
            try:
                second = started.result()
            except CancelledError:
                raise SyncError("the session ended before this round began", rule="closed") from None
            return second()

        last = ending.submit(end)
        self._last = last
        return Work(last)

    @property
    def busy(self) -> bool:
        """True while a job is queued or running."""
        return self._last is not None and not self._last.done()

    def close(self) -> None:
        """Stop the threads after the jobs that have started. The other jobs are cancelled."""
        if self._pools is not None:
            for pool in self._pools:
                pool.shutdown(cancel_futures=pool is self._pools[0])
