"""The base class of errors that say why this machine cannot emulate a network."""

from __future__ import annotations

import sys
from collections.abc import Callable

from testbed import errors
from testbed.errors import CANNOT, DetailedError


class EmulationError(DetailedError, RuntimeError):
    """This machine cannot emulate what was asked for. The text says why and what to do."""

    exit_code = CANNOT


def ending_of(error: BaseException) -> tuple[int, str]:
    """Return an error's exit code and text: as `errors.ending_of`, and for errors of the Docker client too."""
    # A process that never used the engine has not loaded its module, which would take 0.2 s.
    engine = sys.modules.get("testbed.emulation.containers.engine")
    if engine is not None and isinstance(error, engine.ENGINE_ERRORS):
        explained = engine.explained(error)
        if explained is not error:
            explained.__notes__ = getattr(error, "__notes__", [])
            explained.__cause__ = error
        error = explained
    return errors.ending_of(error)


def run_program(act: Callable[[], object]) -> int:
    """Call the body of a program, and return its exit code. The text of an error goes to standard error."""
    try:
        act()
    except Exception as error:
        code, text = ending_of(error)
        print(text, file=sys.stderr)
        return code
    return 0
