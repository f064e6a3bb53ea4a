"""Signals that end a program: the first one raises Interrupted, later ones wait until the clean-up is done."""

from __future__ import annotations

import os
import signal
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | int | None

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """Ctrl-C, or a request to end.

    Attributes:
        records: The directory with the records of the interrupted run, if there is one.
        page: The run's page, if one could be made.
    """

    records: Path | None = None
    page: Path | None = None


#: The errors of an interrupt: of a command, and of a notebook or another program.
INTERRUPTS = (Interrupted, KeyboardInterrupt)


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise Interrupted at the first SIGINT, SIGTERM or SIGHUP inside the context; later signals wait for the clean-up.

    After an interrupt the program is expected to end, so the signals stay ignored: a signal between the clean-up and
    the exit would change the exit code to that of a killed program. (They are ignored by the kernel, not by a Python
    handler, because the interpreter removes Python handlers before it exits.)

    A SIGHUP that was ignored before stays ignored: `nohup` keeps the program up when its terminal closes.
    """
    before = {number: signal.getsignal(number) for number in NUMBERS}
    if before[signal.SIGHUP] is signal.SIG_IGN:
        del before[signal.SIGHUP]
    _restore(dict.fromkeys(before, _Interrupt()))
    after: Mapping[signal.Signals, Handler] = before
    try:
        yield
    except Interrupted:
        after = dict.fromkeys(before, signal.SIG_IGN)
        raise
    finally:
        _restore(after)


class _Interrupt:
    """The signal handler. It raises Interrupted, unless the Interrupted that it raised before is still being handled.

    The interpreter drops an exception that is raised in a finalizer or in a weak reference's callback. Then no clean-up
    is running, and the next signal raises again.
    """

    def __init__(self) -> None:
        self._raised: weakref.ref[Interrupted] | None = None

    def __call__(self, number: int, _: FrameType | None) -> None:
        if self._raised is not None and self._raised() is not None:
            with suppress(OSError):  # the terminal may have gone
                # Not with `print`: a signal may arrive while `print` writes, and `print` is not reentrant.
                os.write(2, b"cleaning up, please wait\n")
            return
        raise self._made(number)

    def _made(self, number: int) -> Interrupted:
        # Made in a frame of its own: the handler's frame is kept by the error's traceback and would keep the error.
        interrupted = Interrupted(signal.Signals(number).name)
        self._raised = weakref.ref(interrupted)
        return interrupted


def _restore(handlers: Mapping[signal.Signals, Handler]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
