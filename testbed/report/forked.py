"""A call in a process of its own, while this one goes on. It is a fork, so there may be no other thread yet."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

T = TypeVar("T")


class ForkedCall(Generic[T]):
    """It begins at once; `result` waits for what it returns, which has to be one that can be pickled."""

    def __init__(self, call: Callable[[], T]) -> None:
        fork = get_context("fork")
        self._receiver, sender = fork.Pipe(duplex=False)
        self._process = fork.Process(target=_send, args=(call, self._receiver, sender), daemon=True)
        self._process.start()
        sender.close()

    def result(self) -> T:
        """What it returned; what it raised is raised here, and EOFError if it was killed."""
        result: T | Exception = self._receiver.recv()
        self._process.join()
        if isinstance(result, Exception):
            raise result
        return result


def _send(call: Callable[[], T], receiver: Connection, sender: Connection) -> None:
    """Ctrl-C ends it without a word, as does the end of the process that waits: nobody would read what is sent."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    receiver.close()
    try:
        result: T | Exception = call()
    except Exception as error:
        result = error
    with suppress(BrokenPipeError):
        sender.send(result)
