"""Asked to end: what a program does that has made things and must take them away first."""

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
    """Ctrl-C, or a request to end."""

    #: The directory with the records of the run that was interrupted, and its page if one could be made.
    records: Path | None = None
    page: Path | None = None


@contextmanager
def interruptible() -> Iterator[None]:
    """While inside, the first SIGINT or SIGTERM raises Interrupted; later ones wait for the clean-up to end.

    Once interrupted the program is to end, and stays deaf until it has: a signal between the clean-up and the exit
    would make its exit code that of a program that was killed. (Ignored by the kernel, not by a handler: those the
    interpreter takes away while it still has to end itself.)

    A SIGHUP that is ignored stays so: `nohup` was to keep the program up when its terminal goes.
    """
    before = {number: signal.getsignal(number) for number in NUMBERS}
    if before[signal.SIGHUP] is signal.SIG_IGN:
        del before[signal.SIGHUP]
    interrupt = _Interrupt()
    _restore(dict.fromkeys(before, interrupt))
    try:
        yield
    except Interrupted:
        _restore(dict.fromkeys(before, signal.SIG_IGN))
        raise
    except BaseException:
        _restore(before)
        raise
    else:
        _restore(before)


class _Interrupt:
    """The handler: it raises Interrupted, unless the one that it raised before is still under way.

    The interpreter drops what is raised in a finalizer or a weak reference's callback. Then nothing is being taken
    away, and the next signal is to be heard.
    """

    def __init__(self) -> None:
        self._raised: weakref.ref[Interrupted] | None = None

    def __call__(self, number: int, _: FrameType | None) -> None:
        if self._raised is not None and self._raised() is not None:
            with suppress(OSError):  # the terminal may have gone
                # Not by `print`: a signal may come while that writes, and it can't be called again before it is done.
                os.write(2, b"removing the network, please wait\n")
            return
        raise self._made(number)

    def _made(self, number: int) -> Interrupted:
        # Not in the handler's own frame, which the error's traceback would keep, and so the frame the error.
        interrupted = Interrupted(signal.Signals(number).name)
        self._raised = weakref.ref(interrupted)
        return interrupted


def _restore(handlers: Mapping[signal.Signals, Handler]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
