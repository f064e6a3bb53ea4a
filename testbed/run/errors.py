"""How a run ends when not by its last round."""

from __future__ import annotations


class RunFailed(RuntimeError):
    """Training did not come to its end; the text says why, and where more is."""


class CannotRun(RuntimeError):
    """This machine cannot do it; the text says what to do about that."""


class TooMuch(CannotRun):
    """The experiment does not fit this host; the text says what would."""
