"""Rounds that go on while their caller does something else: one thread, one after the other, in the order asked for."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Work(Generic[T]):
    """A round that was asked for. The tensor belongs to it until `wait` has returned."""

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def wait(self) -> T:
        """What the round did, once it is over; the SyncError that it ended with."""
        return self._future.result()

    def then(self, call: Callable[[Work[T]], None]) -> None:
        """Have `call` called with this work when it is over, on the thread that ran it."""
        self._future.add_done_callback(lambda _: call(self))


class Later:
    """Runs what it is given on a thread of its own, which exists from the first `begin` on. For one caller."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pool: ThreadPoolExecutor | None = None
        self._last: Future[Any] | None = None

    def begin(self, run: Callable[[], T]) -> Work[T]:
        """Have `run` called after all that was begun before."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix=self._name)
        future = self._pool.submit(run)
        self._last = future
        return Work(future)

    @property
    def busy(self) -> bool:
        """Whether something that was begun is not over."""
        return self._last is not None and not self._last.done()

    def close(self) -> None:
        """End the thread; what has not begun never will."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
