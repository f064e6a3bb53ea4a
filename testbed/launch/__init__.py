"""A user's program on the workers of a network: its environment, its output, its start and its end."""

from __future__ import annotations

from testbed.errors import BAD_INPUT, FAILED, DetailedError


class BadCommand(DetailedError, ValueError):
    """The command can't run, for example because there is no such program; the text says what to write instead."""

    exit_code = BAD_INPUT


class LaunchFailed(DetailedError, RuntimeError):
    """A worker or the Docker engine failed during a launch."""

    exit_code = FAILED
