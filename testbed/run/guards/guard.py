"""An end to a run's parts that would wait for ever, and to what they made: the backstop behind all other deadlines."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from testbed.emulation import cleanup
from testbed.emulation.containers import engine
from testbed.emulation.undo import UndoStack
from testbed.run.errors import RunFailed

#: What is taken away may take so long together; then each thing that still holds it up may for so long.
CLEAN_UP_S = 300.0
AGAIN_S = 30.0


class Guard(UndoStack):
    """An UndoStack with an alarm: what was last allowed a time, and takes longer, ends with RunFailed.

    The error is raised in the main thread, wherever that waits, as an interrupt is. In any other thread there is no
    alarm, since signals are the main thread's.
    """

    def __init__(self) -> None:
        super().__init__()
        self._what = ""
        self._rings = threading.current_thread() is threading.main_thread()

    def allow(self, seconds: float, what: str) -> None:
        """From now on `what` may take so long."""
        self._what = f"{what} took longer than {seconds:g} s"
        if self._rings:
            signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)

    def __enter__(self) -> Self:
        if self._rings:
            self._handler = signal.signal(signal.SIGALRM, self._ring)
            self._timer = signal.setitimer(signal.ITIMER_REAL, 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.allow(CLEAN_UP_S, "taking everything away")
        try:
            super().__exit__(kind, error, trace)
        finally:
            if self._rings:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, self._handler)
                signal.setitimer(signal.ITIMER_REAL, *self._timer)  # somebody else's, which is late now

    def _ring(self, *_: object) -> None:
        raise RunFailed(self._what, rule="timeout")


@contextmanager
def removed_at_end(network: str) -> Iterator[None]:
    """At the end whatever there still is of a network is taken away: interrupted at the wrong moment, the way back may
    have missed something.

    EngineError where there is no engine: then nothing is begun that it would have to take away. RunFailed when it is
    gone at the end.
    """
    engine.connect()
    with UndoStack() as stack:
        stack.callback(_remove_leftovers, network)
        yield


def _remove_leftovers(network: str) -> None:
    try:
        client = engine.connect()
    except engine.EngineError as error:
        cleanup.sweep(None, network)
        raise RunFailed(f"{error} `testbed clean --name {network}` then takes the containers away.") from error
    cleanup.sweep(client, network)
