"""Errors that end a run before its last round."""

from __future__ import annotations

from testbed.emulation.errors import EmulationError
from testbed.errors import FAILED, DetailedError


class RunFailed(DetailedError, RuntimeError):
    """Training did not finish; the text says why and where the logs are."""

    exit_code = FAILED


class CannotRun(EmulationError):
    """This machine cannot do what the experiment asks for."""


class TooMuch(CannotRun):
    """The experiment exceeds this host's budget; the text says what would fit."""
