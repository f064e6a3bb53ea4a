"""The channel to the controller: a Unix stream socket, one JSON object a line."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

from testbed.protocol import MAX_LINE_BYTES, Message, Stop, Welcome, decode, encode
from testbed.sync.errors import Stopped, SyncError
from testbed.sync.sockets import close_now

_SCHEME = "unix:"
_POLL_S = 0.1


class Channel:
    """Messages to and from the controller at `address`, which is `unix:` and a socket's path.

    Waits up to `patience_s` for the controller to be there; SyncError if it is not. `send` may be called from any
    thread, `receive` from one.
    """

    def __init__(self, address: str, patience_s: float) -> None:
        if not address.startswith(_SCHEME):
            raise SyncError(f"the control address {address!r} is none: write unix:/path/of/the.sock")
        self._connection = _connect(address.removeprefix(_SCHEME), patience_s)
        self._lines = self._connection.makefile("rb")
        self._writing = threading.Lock()

    def send(self, message: Message) -> None:
        """Send a message; OSError when the controller is gone."""
        line = encode(message)
        with self._writing:
            self._connection.sendall(line)

    def receive(self) -> Message | None:
        """The next message; None when the controller closed. ProtocolError when it is none of ours."""
        line = self._lines.readline(MAX_LINE_BYTES + 1)
        return decode(line) if line else None

    def await_welcome(self, patience_s: float) -> Welcome:
        """The answer to Hello; SyncError when it is another, or none comes within `patience_s`."""
        self._connection.settimeout(patience_s)
        try:
            message = self.receive()
        except TimeoutError:
            raise SyncError(f"the other members were not there within {patience_s:.0f} s") from None
        self._connection.settimeout(None)
        if isinstance(message, Stop):
            raise Stopped(message.reason)
        if not isinstance(message, Welcome):
            raise SyncError(f"the controller answered {message.kind if message else 'nothing'} instead of welcome")
        return message

    def close(self) -> None:
        """End the channel, also for a thread that waits in `receive`."""
        close_now(self._connection)


def _connect(path: str, patience_s: float) -> socket.socket:
    deadline = time.monotonic() + patience_s
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(path)
            return connection
        except OSError as error:
            with suppress(OSError):
                connection.close()
            if time.monotonic() >= deadline:
                raise SyncError(f"no controller at {path} within {patience_s:.0f} s: {error}") from error
            time.sleep(_POLL_S)
