"""How a run ends when not by its last round."""

from __future__ import annotations

from testbed.emulation.errors import EmulationError
from testbed.errors import FAILED, DetailedError


class RunFailed(DetailedError, RuntimeError):
    """Training did not come to its end; the text says why, and where more is."""

    exit_code = FAILED


class CannotRun(EmulationError):
    """This machine cannot do what the experiment asks for."""


class TooMuch(CannotRun):
    """The experiment does not fit this host; the text says what would."""
