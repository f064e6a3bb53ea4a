"""What is wrong with what a report was asked to be of."""

from __future__ import annotations

from testbed.errors import BAD_INPUT, DetailedError


class NotARun(DetailedError, ValueError):
    """A folder that no run wrote."""

    exit_code = BAD_INPUT
