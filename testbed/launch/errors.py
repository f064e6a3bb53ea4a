"""Why a command is not run on workers, or no longer."""

from __future__ import annotations


class BadCommand(ValueError):
    """There is no such program or worker; the text says what to write instead."""


class LaunchFailed(RuntimeError):
    """A worker or the engine does not do its part."""
