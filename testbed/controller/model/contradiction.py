"""Faults while an event is handled: a member's impossible message, or an error of the controller itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from testbed.errors import DetailedError

log = logging.getLogger(__name__)


class Contradiction(DetailedError, ValueError):
    """A member's message contradicts its earlier messages or the state of the run; the member is excluded.

    Any other error while a message is handled is a fault of the controller, not of a member.
    """


class JoinRefused(Contradiction):
    """A member is refused; the text is sent to the member."""


@contextmanager
def own_errors(event: str, fail: Callable[[str], None]) -> Iterator[None]:
    """End the run by `fail` on any error but a Contradiction.

    The member that is connected at the moment must not be cut off for a fault of the controller, and the other members
    must not wait for work that was not done.

    Args:
        event: The event in words, for the text of the failure.
        fail: Ends the run with a reason.
    """
    try:
        yield
    except Contradiction:
        raise
    except OSError as error:  # the disk that records are written to
        fail(f"the run can't be recorded: {error}")
    except Exception as error:
        log.exception("internal error of the controller while it handled %s", event)
        fail(f"internal error of the controller while it handled {event}: {error!r}; its log has the traceback")
