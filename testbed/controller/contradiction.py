"""The error of who says what can't be."""

from __future__ import annotations


class Contradiction(ValueError):
    """What a member says contradicts what it said before, or what is known of the run: that member is no longer heard.

    Any other error while a message is dealt with is the controller's own, and nobody's who is connected.
    """
