"""Asked to end: what a program does that has made things and must take them away first."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | int | None

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """Ctrl-C, or a request to end."""


@contextmanager
def interruptible() -> Iterator[None]:
    """While inside, the first SIGINT or SIGTERM raises Interrupted; later ones wait for the clean-up to end.

    Once interrupted the program is to end, and stays deaf until it has: a signal between the clean-up and the exit
    would make its exit code that of a program that was killed. (Ignored by the kernel, not by a handler: those the
    interpreter takes away while it still has to end itself.)
    """

    def be_patient(*_: object) -> None:
        with suppress(OSError):  # the terminal may have gone
            print("taking everything away; a moment", file=sys.stderr)

    def interrupt(number: int, _: object) -> None:
        for each in NUMBERS:
            signal.signal(each, be_patient)
        raise Interrupted(signal.Signals(number).name)

    before = {number: signal.signal(number, interrupt) for number in NUMBERS}
    try:
        yield
    except Interrupted:
        _restore(dict.fromkeys(NUMBERS, signal.SIG_IGN))
        raise
    except BaseException:
        _restore(before)
        raise
    else:
        _restore(before)


def _restore(handlers: Mapping[signal.Signals, Handler]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
