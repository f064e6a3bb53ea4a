"""One connection to the controller: a stream socket, Unix or TCP, with one JSON object a line."""

from __future__ import annotations

import io
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from testbed.protocol import (
    MAX_LINE_BYTES,
    ControlMessage,
    Hello,
    ProtocolError,
    Reach,
    Stop,
    Unreached,
    Welcome,
    decode,
    encode,
)
from testbed.sockets import CONTROLLER, SILENT_S, Tls, host_and_port, keep_alive, peer_name, unix_address
from testbed.sync.errors import Stopped, SyncError
from testbed.sync.transport.sockets import REACHED_S, ReachCheck, close_now, shut_down

_POLL_S = 0.1
#: The longest attempt to connect in seconds. A working controller accepts at once; if its host drops packets, another
#: attempt is made.
_CONNECT_S = 5.0
#: The longest wait of `poll` in milliseconds, 24.8 days.
_MOST_WAIT_MS = 2**31 - 1


class ControlChannel:
    """Messages to and from the controller, over one connection.

    Only with `tls` is the connection encrypted. Without it, the token travels in the clear over TCP, so tunnel the
    connection between sites. Any thread may call `send`; one thread may call `receive`.

    Args:
        address: `unix:` and a socket's path, or `tcp:` and `host:port`.
        timeout_s: The longest wait in seconds for the controller to accept the connection.
        tls: This member's certificate; None connects without encryption.

    Raises:
        SyncError: No controller answers in time, the server's certificate is not the controller's, or the address is
            malformed.
    """

    def __init__(self, address: str, timeout_s: float, tls: Tls | None = None) -> None:
        self._writing = threading.Lock()
        self._connection = _connect(endpoint(address), timeout_s, tls)
        if isinstance(self._connection, ssl.SSLSocket):
            self._lines: io.BufferedReader = io.BufferedReader(_TlsReader(self._connection, self._writing))
        else:
            self._lines = self._connection.makefile("rb")

    def send(self, message: ControlMessage) -> None:
        """Send a message to the controller. Any thread may call it.

        Raises:
            OSError: The connection has ended, or the controller has read nothing for SILENT_S, which ends it.
        """
        line = encode(message)
        with self._writing:
            try:
                self._connection.sendall(line)
            except BlockingIOError:  # a part of the line may have been sent
                shut_down(self._connection)
                raise

    def receive(self) -> ControlMessage | None:
        """Wait for the next message. Returns None when the controller has closed the connection, even within a message.

        Raises:
            ProtocolError: The line is not a message of this protocol.
            OSError: The connection broke, or was closed at this end.
        """
        try:
            line = self._lines.readline(MAX_LINE_BYTES + 1)
        except ValueError as error:
            raise OSError("the channel to the controller is closed") from error
        whole = line.endswith(b"\n") or len(line) > MAX_LINE_BYTES
        return decode(line) if whole else None

    def greet(self, hello: Hello, timeout_s: float) -> Welcome:
        """Send this member's Hello, and wait for the controller's Welcome. Answer meanwhile which members are reached.

        Args:
            hello: The Hello.
            timeout_s: The longest wait in seconds for the next message; the controller answers once all members have
                come, or asks a member that waits to join again and again.

        Raises:
            SyncError: The answer is another message, no answer comes in time, or the connection breaks.
            Stopped: The controller tells this member to stop.
        """
        try:
            self.send(hello)
            self._connection.settimeout(timeout_s)
            while isinstance(message := self.receive(), Reach):
                self.send(Unreached(hello.member, unreached(message.roster)))
            self._connection.settimeout(None)
        except ProtocolError as error:
            raise SyncError(f"the controller sent a malformed message: {error}", rule="no-message") from error
        except OSError as error:
            if isinstance(error, TimeoutError) and error.errno is None:  # the kernel's own ETIMEDOUT has a number
                raise SyncError(f"the other members did not join within {timeout_s:.0f} s", rule="timeout") from None
            raise SyncError(
                f"the connection to the controller broke before its welcome: {error}. See whether the controller runs "
                "and, with --tls, whether this member's certificate is valid",
                rule="no-welcome",
            ) from error
        if isinstance(message, Stop):
            raise Stopped(message.reason, message.again)
        if message is None:
            raise SyncError(
                "the controller closed the connection without a welcome. If it was started with --tls, pass --tls "
                "here too",
                rule="no-welcome",
            )
        if not isinstance(message, Welcome):
            raise SyncError(f"the controller sent {message.kind} instead of welcome", rule="no-welcome")
        return message

    def close(self) -> None:
        """Close the channel. A thread that is blocked in `receive` returns."""
        close_now(self._connection)


def unreached(roster: Mapping[str, tuple[str, int]]) -> tuple[str, ...]:
    """Return the members of `roster` to which no connection can be opened within REACHED_S."""
    deadline = time.monotonic() + REACHED_S
    try:
        opened = ReachCheck(roster)
    except OSError:  # this process may open no more files, so that nothing is known
        return ()
    with closing(opened) as check:
        while (left_s := deadline - time.monotonic()) > 0 and not check.step(left_s):
            pass
        return tuple(sorted(check.unreached))


class _TlsReader(io.RawIOBase):
    """Reads a TLS connection on one thread while others send: OpenSSL allows one call at a time.

    The reader waits for bytes before it takes the lock. With the lock held it waits at most for the rest of a record.
    """

    def __init__(self, connection: ssl.SSLSocket, lock: threading.Lock) -> None:
        self._connection = connection
        self._lock = lock
        self._readable = select.poll()
        self._readable.register(connection, select.POLLIN)

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        timeout_s = self._connection.gettimeout()
        wait_ms = None if timeout_s is None else min(1e3 * timeout_s, _MOST_WAIT_MS)
        if not self._connection.pending() and not self._readable.poll(wait_ms):
            raise TimeoutError("no bytes came in time")
        with self._lock:
            return self._connection.recv_into(into)


Endpoint = str | tuple[str, int]


def endpoint(address: str) -> Endpoint:
    """Return the path of a Unix socket, or the host and the port of a controller's address.

    Raises:
        SyncError: The address is malformed.
    """
    scheme, _, rest = address.partition(":")
    if scheme == "unix" and rest:
        return rest
    if scheme == "tcp" and (found := host_and_port(rest)) is not None:
        return found
    raise SyncError(
        f"the control address {address!r} is malformed: write unix:/path/of/the.sock or tcp:host:port",
        rule="address",
        given=address,
    )


def _connect(endpoint: Endpoint, timeout_s: float, tls: Tls | None) -> socket.socket:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return _try(endpoint, tls)
        except ssl.SSLError as error:
            raise SyncError(
                f"the TLS handshake with {endpoint} failed: {error}. Start the controller and all its members with "
                "--tls and certificates of one authority, or all of them without --tls",
                rule="tls",
            ) from error
        except OSError as error:
            if time.monotonic() >= deadline:
                raise SyncError(
                    f"no controller at {endpoint} within {timeout_s:.0f} s: {error}", rule="no-controller"
                ) from error
            time.sleep(_POLL_S)


def _try(endpoint: Endpoint, tls: Tls | None) -> socket.socket:
    if isinstance(endpoint, tuple):
        connection = socket.create_connection(endpoint, _CONNECT_S)
        if tls is not None:
            connection = _secured(tls.opened(connection))
        connection.settimeout(None)
        keep_alive(connection)
        return connection
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", SILENT_S, 0))
    try:
        with unix_address(Path(endpoint)) as short:
            connection.connect(short)
    except OSError:
        connection.close()
        raise
    return connection


def _secured(connection: ssl.SSLSocket) -> ssl.SSLSocket:
    """Complete the handshake, and check that the certificate is the controller's."""
    try:
        connection.do_handshake()
    except OSError:
        connection.close()
        raise
    if (name := peer_name(connection)) != CONTROLLER:
        connection.close()
        raise SyncError(
            f"the server at the controller's address has the certificate of {name or 'nobody'}, not of the controller",
            rule="certificate",
        )
    return connection
