"""The actions of coordinators: a coordinator takes an event and returns actions, which the controller carries out.

    event --> coordinator --> Tell, TellAll       send messages to members
                              After, Background   call the coordinator back after a time, or after some work
                              Announce, Fail      notify observers; end the run
                              Contradiction       raised: the message is impossible

So a coordinator never blocks, and needs neither sockets nor threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from testbed.errors import DetailedError
from testbed.protocol import ControlMessage


class Contradiction(DetailedError, ValueError):
    """A member's message contradicts its earlier messages or the state of the run; the member is excluded.

    Any other error while a message is handled is a fault of the controller, not of a member.
    """


class JoinRefused(Contradiction):
    """A member is refused; the text is sent to the member."""


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a message to a member; dropped when the member is not connected."""

    member: str
    message: ControlMessage


@dataclass(frozen=True, slots=True)
class TellAll:
    """Send a message to every connected member."""

    message: ControlMessage


@dataclass(frozen=True, slots=True)
class After:
    """Call `then` after `seconds`, if the run is still on, and carry out the actions that it returns."""

    seconds: float
    then: Callable[[], Actions]


@dataclass(frozen=True, slots=True)
class Background:
    """Run the long `work` on a thread, pass its result to `then`, and carry out the actions that `then` returns.

    An error that `work` raises ends the run.
    """

    work: Callable[[], Any]
    then: Callable[[Any], Actions]


@dataclass(frozen=True, slots=True)
class Announce:
    """Notify observers that the run's state has changed."""


@dataclass(frozen=True, slots=True)
class Fail:
    """End the run as failed."""

    reason: str


Action = Tell | TellAll | After | Background | Announce | Fail

#: Event handlers are generators. The caller runs a handler to its end before carrying out any of its actions.
Actions = Iterator[Action]
