"""The program `testbed`. Ctrl-C ends it in a line of words, also while the verbs are still being imported."""

from __future__ import annotations

import os
import signal
import sys

INTERRUPTED = 130


def _end(*_: object) -> None:
    """Nothing is under way that would have to be taken away: what makes things handles signals itself.

    At once, for an exception would have to find its way out of whatever is being imported.
    """
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def main() -> None:
    """The entry point."""
    signal.signal(signal.SIGINT, _end)
    try:
        from testbed.cli import main as run
    except ImportError as error:  # of an environment that is not complete
        from testbed.errors import ending_of

        code, text = ending_of(error)
        print(text, file=sys.stderr)
        sys.exit(code)
    run()


if __name__ == "__main__":
    main()
