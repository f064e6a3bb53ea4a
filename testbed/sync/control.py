"""The channel to the controller: a stream socket, Unix or TCP, one JSON object a line."""

from __future__ import annotations

import io
import select
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

from testbed.protocol import MAX_LINE_BYTES, ControlMessage, ProtocolError, Stop, Welcome, decode, encode
from testbed.sockets import CONTROLLER, Tls, peer_name, unix_address
from testbed.sync.errors import Stopped, SyncError
from testbed.sync.transport.sockets import close_now

_POLL_S = 0.1
#: A controller that answers does so within this; one whose host drops packets is asked again.
_CONNECT_S = 5.0


class ControlChannel:
    """Messages to and from the controller at `address`: `unix:` and a socket's path, or `tcp:` and `host:port`.

    Over TCP nothing is encrypted but with `tls`, the token neither: between sites, tunnel it otherwise. Waits up to
    `patience_s` for the controller to be there; SyncError if it is not, or somebody else is. `send` may be called from
    any thread, `receive` from one.
    """

    def __init__(self, address: str, patience_s: float, tls: Tls | None = None) -> None:
        self._writing = threading.Lock()
        self._connection = _connect(_endpoint(address), patience_s, tls)
        if isinstance(self._connection, ssl.SSLSocket):
            self._lines: io.BufferedReader = io.BufferedReader(_Records(self._connection, self._writing))
        else:
            self._lines = self._connection.makefile("rb")

    def send(self, message: ControlMessage) -> None:
        """Send a message; OSError when the controller is gone."""
        line = encode(message)
        with self._writing:
            self._connection.sendall(line)

    def receive(self) -> ControlMessage | None:
        """The next message; None when the controller closed, between two of them or in the middle of one. ProtocolError
        when it is none of ours, OSError when the channel is closed here."""
        try:
            line = self._lines.readline(MAX_LINE_BYTES + 1)
        except ValueError as error:
            raise OSError("the channel to the controller is closed") from error
        whole = line.endswith(b"\n") or len(line) > MAX_LINE_BYTES
        return decode(line) if whole else None

    def await_welcome(self, patience_s: float) -> Welcome:
        """The answer to Hello; SyncError when it is another, or none comes within `patience_s`."""
        self._connection.settimeout(patience_s)
        try:
            message = self.receive()
        except TimeoutError:
            raise SyncError(f"the other members were not there within {patience_s:.0f} s", rule="timeout") from None
        except ProtocolError as error:
            raise SyncError(f"the controller answered what is no message: {error}", rule="no-message") from error
        self._connection.settimeout(None)
        if isinstance(message, Stop):
            raise Stopped(message.reason, message.again)
        if not isinstance(message, Welcome):
            answer = message.kind if message else "nothing, as one with --tls does to who comes without,"
            raise SyncError(f"the controller answered {answer} instead of welcome", rule="no-welcome")
        return message

    def close(self) -> None:
        """End the channel, also for a thread that waits in `receive`."""
        close_now(self._connection)


class _Records(io.RawIOBase):
    """What comes over TLS to a thread while others send: OpenSSL takes one of them at a time.

    So a reader waits for bytes before its turn; in it, it waits for no more than the rest of a record.
    """

    def __init__(self, connection: ssl.SSLSocket, turn: threading.Lock) -> None:
        self._connection = connection
        self._turn = turn
        self._coming = select.poll()
        self._coming.register(connection, select.POLLIN)

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        timeout_s = self._connection.gettimeout()
        if not self._connection.pending() and not self._coming.poll(None if timeout_s is None else 1e3 * timeout_s):
            raise TimeoutError("nothing came in time")
        with self._turn:
            return self._connection.recv_into(into)


Endpoint = str | tuple[str, int]


def _endpoint(address: str) -> Endpoint:
    """The path of a Unix socket, or a host and a port."""
    scheme, _, rest = address.partition(":")
    host, _, port = rest.rpartition(":")
    if scheme == "unix" and rest:
        return rest
    if scheme == "tcp" and host and port.isascii() and port.isdigit() and 0 < int(port) < 2**16:
        return host.strip("[]"), int(port)
    raise SyncError(
        f"the control address {address!r} is none: write unix:/path/of/the.sock or tcp:host:port",
        rule="address",
        given=address,
    )


def _connect(endpoint: Endpoint, patience_s: float, tls: Tls | None) -> socket.socket:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return _try(endpoint, tls)
        except ssl.SSLError as error:
            raise SyncError(
                f"no controller of ours at {endpoint}: {error}. Both it and its members are started with --tls, and "
                "folders of one authority, or none of them",
                rule="tls",
            ) from error
        except OSError as error:
            if time.monotonic() >= deadline:
                raise SyncError(
                    f"no controller at {endpoint} within {patience_s:.0f} s: {error}", rule="no-controller"
                ) from error
            time.sleep(_POLL_S)


def _try(endpoint: Endpoint, tls: Tls | None) -> socket.socket:
    if isinstance(endpoint, tuple):
        connection = socket.create_connection(endpoint, _CONNECT_S)
        if tls is not None:
            connection = _secured(tls.opened(connection))
        connection.settimeout(None)
        # A controller whose host went away without a word must not be waited for until the end of time.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return connection
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with unix_address(Path(endpoint)) as short:
            connection.connect(short)
    except OSError:
        connection.close()
        raise
    return connection


def _secured(connection: ssl.SSLSocket) -> ssl.SSLSocket:
    try:
        connection.do_handshake()
    except OSError:
        connection.close()
        raise
    if (name := peer_name(connection)) != CONTROLLER:
        connection.close()
        raise SyncError(
            f"who listens where the controller should has the certificate of {name or 'nobody'}", rule="certificate"
        )
    return connection
