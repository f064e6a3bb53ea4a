"""A member's line to the controller: renewed while it lives, and made anew when the controller was away."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from testbed.protocol import ControlMessage, Renew
from testbed.sync.control import ControlChannel
from testbed.sync.errors import SyncError
from testbed.tls import Tls

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
        address: str,
        channel: ControlChannel,
        member: str,
        rejoin: Callable[[], Iterable[ControlMessage]],
        lease_s: float,
        tls: Tls | None = None,
    ) -> None:
        self._address = address
        self._member = member
        self._channel = channel
        self._rejoin = rejoin
        self._lease_s = lease_s
        self._tls = tls
        self._closed = threading.Event()
        self._leaving = False
        self._renewing = threading.Thread(target=self._renew, name="renew", daemon=True)
        if lease_s:
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
                if not self._outlives or self._closed.is_set():
                    raise
                message = None
            if message is not None or not self._outlives or not self._again():
                return message

    def leave(self) -> None:
        """Let `receive` end with the connection, instead of looking for the controller again."""
        self._leaving = True

    @property
    def _outlives(self) -> bool:
        """Whether a connection that ended is made anew."""
        return bool(self._lease_s) and not self._leaving

    def close(self) -> None:
        """End the line, also for a thread that waits in `receive`."""
        self._closed.set()
        self._channel.close()
        if self._renewing.is_alive():
            self._renewing.join(RETRY_S)

    def _again(self) -> bool:
        """Find the controller again; False when the line was closed, or the member left, meanwhile."""
        if not self._closed.is_set():
            log.warning("%s: the controller is away", self._member)
        self._channel.close()
        while not self._closed.wait(RETRY_S) and not self._leaving:
            try:
                channel = ControlChannel(self._address, 0, self._tls)
                for message in self._rejoin():
                    channel.send(message)
            except (OSError, SyncError):
                continue
            self._channel = channel
            if self._closed.is_set():
                channel.close()
            return not self._closed.is_set()
        return False

    def _renew(self) -> None:
        while not self._closed.wait(self._lease_s / RENEWALS):
            try:
                self._channel.send(Renew(self._member))
            except OSError:
                continue  # `receive` finds out as well, and finds the controller again
