"""`python -m testbed.planning` compiles the planner's inner loops, which are in C."""

from __future__ import annotations

import sys

from testbed.compiler import CompilerError
from testbed.errors import ending_of
from testbed.planning.events import load

if __name__ == "__main__":
    try:
        load()
    except (CompilerError, OSError) as error:
        sys.exit(ending_of(error)[1])
