"""The end of a run: its clean-up, and the time limits of its phases."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

from testbed.emulation import cleanup
from testbed.emulation.containers import engine
from testbed.emulation.interrupt import INTERRUPTS
from testbed.errors import in_full
from testbed.run.errors import RunFailed

T = TypeVar("T")
P = ParamSpec("P")


class UndoStack:
    """An ExitStack that raises the first error, or an interrupt of the clean-up; other errors become notes of it.

    An ExitStack raises the last error: when the engine dies, its failure during the clean-up would hide why a run
    ended.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def callback(self, undo: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Register a call for the end of the context."""
        self._undo.append(partial(undo, *args, **kwargs))

    def enter_context(self, context: AbstractContextManager[T]) -> T:
        """Enter a context, and leave it at the end as if no error had occurred. Returns the context's value."""
        value = context.__enter__()
        self.callback(context.__exit__, None, None, None)
        return value

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        first = error
        failures = []  # kept until all is undone: while an Interrupted object exists, no further one is raised
        while self._undo:
            try:
                self._undo.pop()()
            except BaseException as failure:
                failures.append(failure)
                if first is None:
                    first = failure
                elif isinstance(failure, INTERRUPTS) and not isinstance(first, INTERRUPTS):  # what goes on ends, too
                    failure.add_note(f"it came in the clean-up after: {in_full(first)}")
                    first = failure
                else:
                    first.add_note(f"the clean-up after this error failed too: {in_full(failure)}")
        if first is not None and first is not error:
            raise first


#: The time limit of the whole clean-up. After it, the alarm goes off every AGAIN_S and interrupts the step that hangs.
CLEAN_UP_S = 300.0
AGAIN_S = 30.0


class Guard(UndoStack):
    """An UndoStack with an alarm: a phase that exceeds its time limit ends with RunFailed.

    The alarm is a signal, so the error is raised in the main thread wherever it waits, as an interrupt is. A Guard that
    is made in another thread has no alarm.
    """

    def __init__(self) -> None:
        super().__init__()
        self._what = ""
        self._rings = threading.current_thread() is threading.main_thread()

    def allow(self, seconds: float, what: str) -> None:
        """Start the time limit of a phase, in place of the previous phase's. An error names the phase as `what`."""
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
        self.allow(CLEAN_UP_S, "the clean-up")
        try:
            super().__exit__(kind, error, trace)
        finally:
            if self._rings:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, self._handler)
                signal.setitimer(signal.ITIMER_REAL, *self._timer)  # the timer from before; it goes off late

    def _ring(self, *_: object) -> None:
        raise RunFailed(self._what, rule="timeout")


@contextmanager
def removed_at_end(network: str, containers: bool) -> Iterator[None]:
    """On leaving, remove everything that carries the network's label: an interrupted clean-up may have missed some.

    With `containers`, a Docker engine must answer.

    Raises:
        EngineError: No Docker engine answers on entry, so nothing is started.
        RunFailed: The engine no longer answers on leaving.
    """
    if containers:
        engine.connect()
    with UndoStack() as stack:
        stack.callback(_remove_leftovers if containers else partial(cleanup.sweep, None), network)
        yield


def _remove_leftovers(network: str) -> None:
    try:
        client = engine.connect()
    except engine.EngineError as error:
        cleanup.sweep(None, network)
        raise RunFailed(f"{error} `testbed network clean --name {network}` then removes the containers.") from error
    cleanup.sweep(client, network)
