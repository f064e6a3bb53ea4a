"""What coordinators ask for: they are told events and answer with actions, which the controller carries out.

    event --> coordinator --> Tell, TellAll       messages to members
                              After, Background   to be called back: when time has passed, when work is done
                              Announce, Fail      for those who watch; the end of the run

So coordinators wait for nothing, and need neither sockets nor threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from testbed.protocol import ControlMessage


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a message to a member; nothing happens when it is not connected."""

    member: str
    message: ControlMessage


@dataclass(frozen=True, slots=True)
class TellAll:
    """Send a message to every member that is connected."""

    message: ControlMessage


@dataclass(frozen=True, slots=True)
class After:
    """When `seconds` have passed, carry out what `then` answers, if the run still goes on."""

    seconds: float
    then: Callable[[], Actions]


@dataclass(frozen=True, slots=True)
class Background:
    """Do `work` beside all else, for it may take long, and carry out what `then` answers to its result.

    An error that `work` raises ends the run.
    """

    work: Callable[[], Any]
    then: Callable[[Any], Actions]


@dataclass(frozen=True, slots=True)
class Announce:
    """Those who watch should look again."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The run can't go on."""

    reason: str


Action = Tell | TellAll | After | Background | Announce | Fail

#: Handlers of events are generators. Whoever calls one runs it to its end before carrying anything out.
Actions = Iterator[Action]
