"""The program `testbed`. Ctrl-C ends it in a line of words, also while the verbs are still being imported."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130


def _end(*_: object) -> None:
    """Nothing is under way that would have to be taken away: what makes things handles signals itself.

    At once, for an exception would have to find its way out of whatever is being imported.
    """
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def main() -> None:
    """Run `testbed`."""
    signal.signal(signal.SIGINT, _end)
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
    """End the program in words where the environment lacks a package that the body imports."""
    try:
        yield
    except ImportError as error:
        from testbed.errors import ending_of

        code, text = ending_of(error)
        print(text, file=sys.stderr)
        sys.exit(code)


if __name__ == "__main__":
    main()
