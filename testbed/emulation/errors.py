"""What every error of a machine that cannot emulate is."""

from __future__ import annotations

from testbed.errors import DetailedError


class EmulationError(DetailedError, RuntimeError):
    """This machine cannot emulate what was asked for. The text says why, and what to do about it."""
