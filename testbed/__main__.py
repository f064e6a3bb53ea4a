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


def main() -> None:
    """Run `testbed`.

    Root's PATH may lack the folders of `tc` and `iptables`, in a crontab or after `su`: they are added to it.
    """
    signal.signal(signal.SIGINT, _end)
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join([*path, *(SYSTEM_FOLDERS[each] for each in path if each in SYSTEM_FOLDERS)])
    with _complete():
        from testbed.cli import main as run
    run()


def controller_main() -> int:
    """Run `testbed-controller`. Returns its exit code."""
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
