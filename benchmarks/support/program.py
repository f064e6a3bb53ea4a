"""The program around a benchmark: what it needs of this machine, and the code that it ends with.

Exit codes are those of `testbed`: 0 done; 1 a claim is missed or a run failed; 2 bad input; 3 this machine can't.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn

from benchmarks.support.table import progress
from testbed.errors import in_full


def run_program(main: Callable[[], int | None]) -> NoReturn:
    """Run a benchmark's `main`, and end the program with the code that it returns.

    An error with an exit code ends the program with that code and the error's text, which says what to do. Any other
    error has a traceback, since it is the benchmark's own.
    """
    try:
        code = main()
    except Exception as error:
        code = getattr(error, "exit_code", None)
        if code is None:
            raise
        progress(in_full(error))
    sys.exit(code)
