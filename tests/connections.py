"""Other processes' connections, as copies of their descriptors."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

_PIDFD_GETFD = 438


def connections_of(pid: int, family: socket.AddressFamily) -> Iterator[socket.socket]:
    """Yield the connected sockets of a process, each open until the next is requested.

    They are copies: an action on a copy acts on the process's own socket. Needs to be root, or the process's parent.
    """
    with suppress(ProcessLookupError, FileNotFoundError):
        holder = os.pidfd_open(pid)
        try:
            for path in Path(f"/proc/{pid}/fd").iterdir():
                if "socket:" in str(path.readlink()) and (copy := _copy(holder, int(path.name))) is not None:
                    with closing(copy):
                        if copy.family == family and _is_connected(copy):
                            yield copy
        finally:
            os.close(holder)


def _copy(holder: int, descriptor: int) -> socket.socket | None:
    copied = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, holder, descriptor, 0)
    if copied < 0:
        return None
    try:
        return socket.socket(fileno=copied)
    except OSError:
        os.close(copied)
        return None


def _is_connected(copy: socket.socket) -> bool:
    try:
        return bool(copy.getpeername()) or copy.family == socket.AF_UNIX
    except OSError:
        return False
