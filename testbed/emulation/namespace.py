"""Doing something in another network namespace: what is opened there stays there."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

_CLONE_NEWNET = 0x40000000

T = TypeVar("T")


def inside(netns: Path, make: Callable[[], T]) -> T:
    """What `make` returns in a namespace, called in a thread of its own, the only one that enters.

    Raises OSError when the namespace is gone or closed to us, and whatever `make` raises.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def enter_and_make() -> None:
        try:
            _enter(netns)
            results.append(make())
        except BaseException as error:  # it goes on in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=enter_and_make)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _enter(netns: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with netns.open("rb") as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(netns))
