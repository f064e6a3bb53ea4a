"""Has a loop's thread do what others ask for, one thing after the other, while it waits for its next look."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class LoopExecutor(Executor):
    """What is submitted is done by whoever calls `wait`. What is left when it is shut down is cancelled."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._over = False

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Ask for a call, from any thread. RuntimeError once it is shut down."""
        if self._over:
            raise RuntimeError("no calls are taken any more")
        future: Future[R] = Future()
        self._asked.put((future, lambda: fn(*args, **kwargs)))
        return future

    def wait(self, seconds: float) -> None:
        """Do what was asked for, and what is asked for until so many seconds are over."""
        until = time.monotonic() + seconds
        with suppress(queue.Empty):
            while True:
                _do(*self._asked.get(timeout=max(0.0, until - time.monotonic())))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more, and leave what was not done."""
        self._over = True
        while not self._asked.empty():
            self._asked.get()[0].cancel()


def _do(future: Future[Any], work: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)
    except BaseException as error:  # an interrupt is this thread's, and ends what it was asked to do as well
        future.set_exception(RuntimeError(f"interrupted: {error}"))
        raise
