"""What every error of a machine that cannot emulate is."""

from __future__ import annotations

import sys

from testbed import errors
from testbed.errors import CANNOT, DetailedError


class EmulationError(DetailedError, RuntimeError):
    """This machine cannot emulate what was asked for. The text says why, and what to do about it."""

    exit_code = CANNOT


def ending_of(error: BaseException) -> tuple[int, str]:
    """Return the exit code for an error and its text, as `errors.ending_of`, also for an error of a Docker client."""
    # Where no engine was ever spoken to, its module is not loaded, and need not be: that takes 0.2 s.
    engine = sys.modules.get("testbed.emulation.containers.engine")
    if engine is not None and isinstance(error, engine.ENGINE_ERRORS):
        explained = engine.explained(error)
        if explained is not error:
            explained.__notes__ = getattr(error, "__notes__", [])
        error = explained
    return errors.ending_of(error)
