"""Whose error it is that comes of a message: the member's who said what can't be, or the controller's own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from testbed.errors import DetailedError

log = logging.getLogger(__name__)


class Contradiction(DetailedError, ValueError):
    """What a member says contradicts what it said before, or what is known of the run: that member is no longer heard.

    Any other error while a message is dealt with is the controller's own, and nobody's who is connected.
    """


class JoinRefused(Contradiction):
    """A member that is not let in; the text is told to it."""


@contextmanager
def own_errors(event: str, fail: Callable[[str], None]) -> Iterator[None]:
    """What goes wrong with an event ends the run by `fail`, unless it is a Contradiction: whoever happens to be
    connected must not be cut off for it, nor the others wait for what was not done."""
    try:
        yield
    except Contradiction:
        raise
    except OSError as error:  # of the disk that is written to
        fail(f"the run can't be recorded: {error}")
    except Exception as error:
        log.exception("the controller broke on %s", event)
        fail(f"the controller broke on {event}: {error!r}")
