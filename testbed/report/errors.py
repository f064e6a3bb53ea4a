"""What is wrong with what a report was asked to be of."""

from __future__ import annotations


class NotARun(ValueError):
    """A folder that no run wrote."""
