"""`python -m testbed.emulation.shaping`: compile the shaping core and print its path."""

from __future__ import annotations

import sys

from testbed.emulation.shaping.base import ShapingError
from testbed.emulation.shaping.process import build_core

if __name__ == "__main__":
    try:
        print(build_core())
    except ShapingError as error:
        sys.exit(str(error))
