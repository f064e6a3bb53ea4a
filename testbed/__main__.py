"""The program `testbed`. Ctrl-C ends it with one line, also while the verbs are still being imported."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130

#: Folders of programs, and the folders of the administrator's programs beside them.
SYSTEM_FOLDERS = {"/usr/local/bin": "/usr/local/sbin", "/usr/bin": "/usr/sbin", "/bin": "/sbin"}


def _end(*_: object) -> None:
    """End the process at once: an exception might be caught in the middle of an import.

    There is nothing to clean up yet: the verbs that make things handle signals themselves.
    """
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def _open_closed() -> None:
    """Open standard input, output and error where the caller closed them (`>&-`), and drop what is written there.

    The next file that is opened would get their number, and what is written to them.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115 (it gets the lowest number that is free)
            os.set_inheritable(number, True)


def main() -> None:
    """Run `testbed`.

    Root's PATH may lack the folders of `tc` and `iptables`, in a crontab or after `su`: they are added to it.
    """
    _open_closed()
    signal.signal(signal.SIGINT, _end)
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join([*path, *(SYSTEM_FOLDERS[each] for each in path if each in SYSTEM_FOLDERS)])
    with _complete():
        from testbed.cli import main as run
    run()


def controller_main() -> int:
    """Run `testbed-controller`. Returns its exit code."""
    _open_closed()
    with _complete():
        from testbed.controller.standalone import main as run
    return run()


@contextmanager
def _complete() -> Iterator[None]:
    """End the program with one line where the environment lacks a package that the body imports."""
    try:
        yield
    except ImportError as error:
        from testbed.errors import ending_of

        code, text = ending_of(error)
        print(text, file=sys.stderr)
        sys.exit(code)


if __name__ == "__main__":
    main()
