"""What torch calls as it is imported (entry points `torch.backends`): TESTBED_SCHEME puts a scheme around a script.

It does nothing, and loads nothing, unless that is set.
"""

from __future__ import annotations

import os
import sys

VARIABLE = "TESTBED_SCHEME"


def load() -> None:
    """Install the scheme that the environment names. Ends the process with 2 where it names none."""
    text = os.environ.get(VARIABLE)
    if not text:
        return
    from testbed.schemes.unchanged import install

    try:
        install(text)
    except ValueError as error:
        print(f"{VARIABLE}={text}: {error}", file=sys.stderr)
        sys.exit(2)
