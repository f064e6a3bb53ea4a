"""Programs that are not ours on a network's workers: what each is told, what it says, and how all start and end."""

from __future__ import annotations

from testbed.errors import BAD_INPUT, FAILED, DetailedError


class BadCommand(DetailedError, ValueError):
    """There is no such program or worker; the text says what to write instead."""

    exit_code = BAD_INPUT


class LaunchFailed(DetailedError, RuntimeError):
    """A worker or the engine does not do its part."""

    exit_code = FAILED
