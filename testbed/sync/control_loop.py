"""A member's thread that handles the controller's messages, and the member's way out of the run."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

from testbed.protocol import ControlMessage, Goodbye, Stop
from testbed.sync.control_connection import ControlConnection
from testbed.sync.errors import Stopped, SyncError
from testbed.sync.transport import CLOSE_S

log = logging.getLogger(__name__)


class ControlLoop(ABC):
    """Handles the controller's messages for one member, on a thread of its own, until the connection ends.

    Attributes:
        leaving: True after the member has sent its Goodbye.
        released: Set when the controller has answered the Goodbye, or closed the connection.
    """

    def __init__(self, member: str, connection: ControlConnection) -> None:
        """Take over the connection; `start` begins to handle messages."""
        self.leaving = False
        self.released = threading.Event()
        self._member = member
        self._connection = connection
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self) -> None:
        """Start to handle messages."""
        self._thread.start()

    def goodbye(self, message: Goodbye) -> None:
        """Tell the controller that this member leaves."""
        self.leaving = True
        self._connection.tell(message)

    def give_up(self, rounds: int, error: BaseException | None) -> None:
        """Tell the controller that this member leaves because of an error, and connect to it no more.

        Args:
            rounds: The number of the last completed round.
            error: The error.
        """
        self._connection.leave()
        text = f"{type(error).__name__ if error else ''}: {error}"
        self.goodbye(Goodbye.with_error(self._member, rounds, text))

    def close(self) -> None:
        """Close the connection, and wait for the thread to end."""
        self._connection.close()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        try:
            for message in self._messages():
                self._handle_any(message)
        except Exception as error:  # without this thread a member would miss swaps, lost members and the end
            if not isinstance(error, SyncError):  # a bug: log where it comes from
                log.exception("%s: failed to handle a message of the controller", self._member)
            self._fail(SyncError(f"failed to handle a message of the controller: {error}", rule="controller"))
        self.released.set()

    def _messages(self) -> Iterator[ControlMessage]:
        with suppress(OSError):  # closed at this end: the member leaves
            while (message := self._connection.receive()) is not None:
                yield message

    def _handle_any(self, message: ControlMessage) -> None:
        match message:
            case Stop() if self.leaving:
                self.released.set()
            case Stop():
                self._fail(Stopped(message.reason, message.again))
            case _:
                self._handle(message)

    @abstractmethod
    def _handle(self, message: ControlMessage) -> None:
        """Handle a message other than Stop. What it raises ends the member's training."""

    @abstractmethod
    def _fail(self, error: SyncError) -> None:
        """End the member's training with the error."""


class ControlledMember(ABC):
    """One member's part in a run. A context manager; leaving it ends the member's part in the run."""

    #: Handles the controller's messages.
    _control: ControlLoop

    @property
    @abstractmethod
    def rounds(self) -> int:
        """The number of the last completed round, from 1 on; 0 before the first."""

    @abstractmethod
    def finish(self, digest: str = "", metrics: Mapping[str, float] | None = None) -> None:
        """Leave the run, after the peers have read all that was sent to them."""

    @abstractmethod
    def _close(self) -> None:
        """Close the connections to peers at once, and end this member's threads."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Call `finish`, unless it was called; report an error to the controller instead.

        Raises:
            SyncError: A peer did not read all that was sent to it within a round's timeout.
        """
        try:
            if not self._control.leaving and kind is None:
                self.finish()
        except BaseException as undelivered:
            error = undelivered
            raise
        finally:
            if not self._control.leaving:
                self._control.give_up(self.rounds, error)
            # The controller closes the connection once it has read the Goodbye. If it were closed here before, a
            # message that the controller is sending would fail, and the unread Goodbye would be lost with it.
            self._control.released.wait(CLOSE_S)
            self._close()
            self._control.close()
