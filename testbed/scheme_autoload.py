"""An entry point of `torch.backends`, which PyTorch calls on import: puts the scheme in TESTBED_SCHEME around a script.

Without that variable it does nothing and loads nothing.
"""

from __future__ import annotations

import os
import sys

VARIABLE = "TESTBED_SCHEME"


def load() -> None:
    """Install the scheme that the environment names. Exit with 2 where there is no such scheme."""
    text = os.environ.get(VARIABLE)
    if not text:
        return
    from testbed.schemes.unchanged import install

    try:
        install(text)
    except ValueError as error:
        print(f"{VARIABLE}={text}: {error}", file=sys.stderr)
        sys.exit(2)
