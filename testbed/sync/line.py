"""A member's line to the controller: renewed while it lives, and made anew when the controller was away."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from testbed.protocol import ControlMessage, Renew
from testbed.sync.clock import SYSTEM, Clock
from testbed.sync.control import ControlChannel
from testbed.sync.errors import SyncError

#: Renewals within a lease: one may be late, and one lost with a connection.
RENEWALS = 3
#: Between two attempts to find the controller.
RETRY_S = 0.5

log = logging.getLogger(__name__)


class Line:
    """Messages to and from the controller. With a `lease_s` it renews the lease, and outlives the controller:

    when the connection ends it tries again until there is one, says what `rejoin` gives, and `receive` goes on. What is
    sent meanwhile is lost, and OSError says so. `send` may be called from any thread, `receive` from one.
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
            channel: The channel to the controller that this member has met.
            member: The member that the line belongs to.
            rejoin: Returns what the member says to a controller that it has found again.
            lease_s: How long the controller keeps a member that it does not hear from; 0 where members have no leases.
            connect: Makes another channel, or raises OSError or SyncError where the controller is away.
            clock: Measures the time between renewals, and between attempts to find the controller.
        """
        self._member = member
        self._channel = channel
        self._rejoin = rejoin
        self._lease_s = lease_s
        self._connect = connect
        self._clock = clock
        self._changed = threading.Condition()
        self._closed = self._leaving = False
        self._renewing = threading.Thread(target=self.renew, name="renew", daemon=True)

    def start(self) -> None:
        """Renew the lease, where there is one, until the line is closed."""
        if self._lease_s:
            self._renewing.start()

    def send(self, message: ControlMessage) -> None:
        """Send a message; OSError when the controller is gone."""
        self._channel.send(message)

    def tell(self, message: ControlMessage) -> None:
        """Send what the controller should know. Training does not need the controller, so it goes on without."""
        try:
            self.send(message)
        except OSError as error:
            log.warning("%s: the controller did not get a %s: %s", self._member, message.kind, error)

    def receive(self) -> ControlMessage | None:
        """The next message; None when there will be none any more. ProtocolError when it is none of ours."""
        while True:
            try:
                message = self._channel.receive()
            except OSError:
                if not self._outlives or self._closed:
                    raise
                message = None
            if message is not None or not self._outlives or not self._again():
                return message

    def leave(self) -> None:
        """Let `receive` end with the connection, instead of looking for the controller again."""
        with self._changed:
            self._leaving = True
            self._changed.notify_all()

    @property
    def _outlives(self) -> bool:
        """Whether a connection that ended is made anew."""
        return bool(self._lease_s) and not self._leaving

    def close(self) -> None:
        """End the line, also for a thread that waits in `receive`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._channel.close()
        if self._renewing.is_alive():
            self._renewing.join(RETRY_S)

    def _again(self) -> bool:
        """Find the controller again; False when the line was closed, or the member left, meanwhile."""
        if not self._closed:
            log.warning("%s: the controller is away", self._member)
        self._channel.close()
        while not self._ends_within(RETRY_S, leaving=True):
            try:
                channel = self._connect()
                for message in self._rejoin():
                    channel.send(message)
            except (OSError, SyncError):
                continue
            self._channel = channel
            if self._closed:
                channel.close()
            return not self._closed
        return False

    def renew(self) -> None:
        """Renew the lease from time to time, until the line is closed."""
        while not self._ends_within(self._lease_s / RENEWALS):
            try:
                self._channel.send(Renew(self._member))
            except OSError:
                continue  # `receive` finds out as well, and finds the controller again

    def _ends_within(self, seconds: float, leaving: bool = False) -> bool:
        """Wait, and return whether the line was closed, or with `leaving` whether the member left."""
        with self._changed:
            return self._clock.wait_for(self._changed, lambda: self._closed or (leaving and self._leaving), seconds)
