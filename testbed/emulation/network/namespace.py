"""Network namespaces: creating one, and running a function in one. A socket that is opened there stays there."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from testbed.emulation.errors import EmulationError
from testbed.emulation.process import ProcessIdentity

_CLONE_NEWNET = 0x40000000
CLONE_NEWUTS = 0x4000000

T = TypeVar("T")


class Namespace:
    """A network namespace, held by an otherwise idle thread of this process.

    Creating it takes half a millisecond, where a process that holds it takes 13 ms, and a killed testbed leaves no
    namespace behind.
    """

    def __init__(self) -> None:
        """Create the namespace. Raises EmulationError if the kernel refuses."""
        self._over = threading.Event()
        made: Future[int] = Future()
        try:
            self._holder = threading.Thread(target=_hold, args=(made, self._over), name="namespace", daemon=True)
            self._holder.start()
            #: The id of the thread that holds it. /proc, netlink and `nsenter` accept it like a process id.
            self.pid = made.result()
        except OSError as error:
            # The kernel says ENOSPC where it allows no further namespace (unshare(2)).
            remedy = "raise `sysctl user.max_net_namespaces`" if error.errno == errno.ENOSPC else "run as root"
            text = f"a network namespace could not be created: {error.strerror}; {remedy}"
            raise EmulationError(text, rule="namespace") from error
        except BaseException:
            self._over.set()
            raise

    @property
    def holder(self) -> ProcessIdentity:
        """The thread that holds the namespace, identified beyond its number."""
        holder = ProcessIdentity.of(self.pid)
        assert holder is not None, "the namespace is closed"
        return holder

    @property
    def path(self) -> Path:
        """The namespace's file in /proc."""
        return Path(f"/proc/{self.pid}/ns/net")

    def close(self) -> None:
        """Release the namespace, and with it every interface in it. Calling it twice is allowed."""
        self._over.set()
        self._holder.join()


def _hold(made: Future[int], over: threading.Event) -> None:
    try:
        call("unshare", _CLONE_NEWNET)
    except OSError as error:
        made.set_exception(error)
        return
    made.set_result(threading.get_native_id())
    over.wait()
    # The kernel's thread ends a moment after Python's and must not hold the namespace until then.
    _enter(Path(f"/proc/{os.getpid()}/ns/net"))


def held_by(pid: int) -> bool:
    """Return whether a process holds a network namespace.

    A process that ends releases its namespace while it still counts as running, and becomes a zombie a moment later.
    """
    return Path(f"/proc/{pid}/ns/net").exists()


def inside(netns: Path | ProcessIdentity, make: Callable[[], T]) -> T:
    """Call `make` in the namespace of a file, or of the process or thread that holds it, and return its result.

    A thread of its own enters the namespace.

    Raises:
        OSError: The namespace is gone, or may not be entered; ProcessLookupError if its holder has ended. Errors of
            `make` are raised too.
    """

    def enter_and_make() -> T:
        if isinstance(netns, Path):
            _enter(netns)
        else:
            enter(netns)
        return make()

    return in_own_thread(enter_and_make)


def in_own_thread(act: Callable[[], T]) -> T:
    """Call `act` in a thread that ends afterwards, and return its result; an error is raised in the caller's thread."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(act())
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return done.result()


def enter(holder: ProcessIdentity) -> None:
    """Move this thread for good into the network namespace that a process or thread holds.

    Raises:
        ProcessLookupError: The holder has ended; its number may belong to another process by now.
    """
    with opened(holder) as descriptor:
        call("setns", descriptor, _CLONE_NEWNET)


@contextmanager
def opened(holder: ProcessIdentity) -> Iterator[int]:
    """Yield a descriptor of the network namespace that a process or thread holds.

    Raises:
        ProcessLookupError: The holder has ended; its number may belong to another process by now.
    """
    try:
        file = (holder.folder / "ns/net").open("rb")
    except FileNotFoundError:
        raise ProcessLookupError from None
    with file:
        if not holder.is_running:
            raise ProcessLookupError
        yield file.fileno()


def _enter(netns: Path) -> None:
    with netns.open("rb") as file:
        call("setns", file.fileno(), _CLONE_NEWNET, about=str(netns))


def call(function: str, *arguments: Any, about: str | None = None) -> None:
    """Call a function of the C library that returns 0 on success, else raise OSError with errno and path `about`."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, function)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), about)
