"""A member's connection to the controller, and the base of members that have one.

The connection renews the member's lease, and connects again after an outage.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Self

from testbed.protocol import ControlMessage, Goodbye, Renew, Stop
from testbed.sync.clock import SYSTEM, Clock
from testbed.sync.control_channel import ControlChannel
from testbed.sync.errors import Stopped, SyncError
from testbed.sync.executor import start
from testbed.sync.transport import CLOSE_S

#: The renewals within a lease: one may be late, and one lost with a connection.
RENEWALS = 3
#: Seconds between two attempts to reach the controller.
RETRY_S = 0.5

log = logging.getLogger(__name__)


class ControlConnection:
    """Messages to and from the controller. With a lease, the connection outlives an outage of the controller.

    When the channel ends, the connection makes another one, sends the messages of `rejoin`, and `receive` goes on.
    Messages sent in between are lost, and `send` raises OSError for them; the Goodbye alone is sent again. Any thread
    may call `send`; one thread may call `receive`.
    """

    def __init__(
        self,
        channel: ControlChannel,
        member: str,
        rejoin: Callable[[], Iterable[ControlMessage]],
        lease_s: float,
        connect: Callable[[], ControlChannel],
        clock: Clock = SYSTEM,
    ) -> None:
        """Take over a channel; `start` begins to renew the lease.

        Args:
            channel: The channel over which this member was welcomed.
            member: The member's name.
            rejoin: Returns the messages with which the member introduces itself to a controller that is back.
            lease_s: Seconds for which the controller keeps a silent member; 0 if members have no leases.
            connect: Makes another channel, or raises OSError or SyncError while the controller is away.
            clock: Measures the time between renewals, and between attempts to reach the controller.
        """
        self._member = member
        self._channel = channel
        self._rejoin = rejoin
        self._lease_s = lease_s
        self._connect = connect
        self._clock = clock
        self._changed = threading.Condition()
        self._closed = self._leaving = False
        self._goodbye: Goodbye | None = None
        self._renewing = threading.Thread(target=self.renew, name="renew", daemon=True)

    def start(self) -> None:
        """Renew the lease, if there is one, on a thread until `close`.

        Raises:
            SyncError: No other thread can be started.
        """
        if self._lease_s:
            start(self._renewing)

    def send(self, message: ControlMessage) -> None:
        """Send a message.

        Raises:
            OSError: The controller is away.
        """
        self._channel.send(message)

    def tell(self, message: ControlMessage) -> None:
        """Send a message, or log that it was lost: training goes on without the controller."""
        try:
            self.send(message)
        except OSError as error:
            log.warning("%s: a %s did not reach the controller: %s", self._member, message.kind, error)

    def say_goodbye(self, message: Goodbye) -> None:
        """Send the Goodbye, and send it again over each later channel: a restarted controller does not know of it."""
        self._goodbye = message  # before the send: a channel that is made meanwhile sends it, too
        self.tell(message)

    def receive(self) -> ControlMessage | None:
        """Wait for the next message. Returns None when the connection has ended for good.

        Raises:
            ProtocolError: The controller sent a malformed message.
            OSError: The connection was closed at this end.
        """
        while True:
            try:
                message = self._channel.receive()
            except OSError:
                if not self._reconnects or self._closed:
                    raise
                message = None
            if message is not None or not self._reconnects or not self._reconnect():
                return message

    def leave(self) -> None:
        """Let `receive` end with the channel, instead of connecting again."""
        with self._changed:
            self._leaving = True
            self._changed.notify_all()

    @property
    def _reconnects(self) -> bool:
        """True if another channel is made when this one ends."""
        return bool(self._lease_s) and not self._leaving

    def stop(self) -> None:
        """Stop renewing the lease, and make no other channel. The present channel stays open."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def close(self) -> None:
        """Close the connection. A thread that is blocked in `receive` returns."""
        self.stop()
        self._channel.close()
        if self._renewing.is_alive():
            self._renewing.join(RETRY_S)

    def _reconnect(self) -> bool:
        """Try until there is a channel to the controller. Returns False after `close` or `leave`."""
        if not self._closed:
            log.warning("%s: lost the controller; trying to reconnect each %g s", self._member, RETRY_S)
        self._channel.close()
        while not self._ends_within(RETRY_S, leaving=True):
            try:
                channel = self._connect()
                for message in self._rejoin():
                    channel.send(message)
                self._channel = channel
                if self._goodbye is not None:
                    channel.send(self._goodbye)
            except (OSError, SyncError):
                continue
            if self._closed:
                channel.close()
            return not self._closed
        return False

    def renew(self) -> None:
        """Renew the lease RENEWALS times a lease, until `close`."""
        while not self._ends_within(self._lease_s / RENEWALS):
            try:
                self._channel.send(Renew(self._member))
            except OSError:
                continue  # `receive` notices the outage as well, and connects again

    def _ends_within(self, seconds: float, leaving: bool = False) -> bool:
        """Wait for some seconds. Returns True as soon as the connection is closed, or with `leaving` after `leave`."""
        with self._changed:
            return self._clock.wait_for(self._changed, lambda: self._closed or (leaving and self._leaving), seconds)


class ControlledMember(ABC):
    """One member's part in a run. A context manager; leaving it ends the member's part in the run."""

    def __init__(self, name: str, connection: ControlConnection) -> None:
        """Take over the connection; a subclass calls `_start` once it can handle messages."""
        self.name = name
        self._connection = connection
        self._leaving = False  # the Goodbye was sent
        self._released = threading.Event()  # the controller has answered the Goodbye, or closed the connection
        self._control = threading.Thread(target=self._handle_all, name="control", daemon=True)

    @property
    @abstractmethod
    def rounds(self) -> int:
        """The number of the last completed round, or of the iteration entered last."""

    @abstractmethod
    def finish(self) -> None:
        """Leave the run, after the peers have read all that was sent to them."""

    @abstractmethod
    def _handle(self, message: ControlMessage) -> None:
        """Handle a message other than Stop. An error that it raises ends the member's training."""

    @abstractmethod
    def _fail(self, error: SyncError) -> None:
        """End the member's training with the error."""

    @abstractmethod
    def _close(self) -> None:
        """Close the connections to peers at once, and end this member's threads."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Call `finish`, unless it was called; report an error to the controller instead.

        Raises:
            SyncError: A peer of a session did not read all that was sent to it within a round's timeout.
        """
        try:
            if not self._leaving and error is None:
                self.finish()
        except BaseException as undelivered:
            error = undelivered
            raise
        finally:
            if not self._leaving:
                self._connection.leave()
                text = f"{type(error).__name__ if error else ''}: {error}"
                self._goodbye(Goodbye.with_error(self.name, self.rounds, text))
            # The controller closes the connection once it has read the Goodbye. If it were closed here before, a
            # message that the controller is sending would fail, and the unread Goodbye would be lost with it.
            self._released.wait(CLOSE_S)
            self._close()
            self._connection.close()
            self._control.join(CLOSE_S)

    def _start(self) -> None:
        """Renew the lease, and handle the controller's messages, until the member leaves.

        Raises:
            SyncError: No other thread can be started. The channel stays open, so that the controller can be told.
        """
        self._connection.start()
        try:
            start(self._control)
        except SyncError:
            self._connection.stop()
            raise

    def _goodbye(self, message: Goodbye) -> None:
        self._leaving = True
        self._connection.say_goodbye(message)

    def _handle_all(self) -> None:
        try:
            for message in self._messages():
                if not isinstance(message, Stop):
                    self._handle(message)
                elif self._leaving:
                    self._released.set()
                else:
                    self._fail(Stopped(message.reason, message.again))
        except Exception as error:  # without this thread a member would miss swaps, lost members and the end
            if not isinstance(error, SyncError):  # a bug: log where it comes from
                log.exception("%s: failed to handle a message of the controller", self.name)
            why = str(error) or repr(error)
            self._fail(SyncError(f"failed to handle a message of the controller: {why}", rule="controller"))
        self._released.set()

    def _messages(self) -> Iterator[ControlMessage]:
        with suppress(OSError):  # closed at this end: the member leaves
            while (message := self._connection.receive()) is not None:
                yield message
