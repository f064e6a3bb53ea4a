"""The program `testbed`. Ctrl-C ends it in a line of words, also while the verbs are still being imported."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

CANNOT, INTERRUPTED = 3, 130


def _end(*_: object) -> None:
    """Nothing is under way that would have to be taken away: what makes things handles signals itself.

    At once, for an exception would have to find its way out of whatever is being imported.
    """
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def main() -> None:
    """Run `testbed`."""
    signal.signal(signal.SIGINT, _end)
    with _needing("testbed", "emulate"):
        from testbed.cli import main as run
    run()


def sync_main() -> int:
    """Run `testbed-sync`. Returns its exit code."""
    with _needing("testbed-sync", "controller"):
        from testbed.controller.standalone import main as run
    return run()


@contextmanager
def _needing(program: str, extra: str) -> Iterator[None]:
    """Say what to install where a package is missing: pip puts both programs beside each of this package's extras."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "testbed":
            raise
        print(f"{program}: there is no {error.name} here; `pip install '.[{extra}]'` brings it", file=sys.stderr)
        sys.exit(CANNOT)


if __name__ == "__main__":
    main()
