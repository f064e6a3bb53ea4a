"""Rounds that go on while their caller does something else, in the order asked for: one starts while one ends."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

S = TypeVar("S")
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


class AsyncExecutor:
    """Starts what it is given on one thread and ends it on another, which exist from the first `begin` on.

    So the second may start while the first ends, and both do one after the other. For one caller.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._pools: tuple[ThreadPoolExecutor, ThreadPoolExecutor] | None = None
        self._last: Future[Any] | None = None

    def begin(self, start: Callable[[], S], end: Callable[[S], T]) -> Work[T]:
        """Have `start` called after all that was begun before was started, and `end` after all that was ended."""
        if self._pools is None:
            starts, ends = (ThreadPoolExecutor(1, thread_name_prefix=f"{self._name} {part}") for part in ("on", "off"))
            self._pools = starts, ends
        starting, ending = self._pools
        started = starting.submit(start)
        self._last = ending.submit(lambda: end(started.result()))
        return Work(self._last)

    @property
    def busy(self) -> bool:
        """Whether something that was begun is not over."""
        return self._last is not None and not self._last.done()

    def close(self) -> None:
        """End the threads, once what was started is ended; what was not started never will be."""
        if self._pools is not None:
            for pool in self._pools:
                pool.shutdown(cancel_futures=pool is self._pools[0])
