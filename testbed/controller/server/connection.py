"""A member's connection: lines in, of bounded length, and messages out, with a bounded backlog."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from testbed.protocol import MAX_LINE_BYTES, ControlMessage, ProtocolError, decode, encode
from testbed.sockets import Tls, peer_name

#: The longest first line, before the sender is authenticated: a name, an address, a token.
HELLO_BYTES = 4096
#: Seconds that the first line may take. A member has it ready as it connects; a round trip takes one second at most.
HELLO_S = 10.0

#: The largest backlog for a member that does not read. Members read on a thread of their own, so that even a pause of
#: minutes leaves some KiB; a message of the greatest length must fit.
MOST_UNREAD_BYTES = MAX_LINE_BYTES

#: Connections at once that are not authenticated yet.
MOST_UNAUTHENTICATED = 128

#: The bytes that one read takes at most.
PIECE_BYTES = 64 * 1024


class Connection:
    """A stream of messages in both directions, one a line."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        #: Why the controller cut the connection, or empty.
        self.why = ""
        #: True if messages that were received and not returned yet no longer count.
        self.superseded = False
        self._reader = reader
        self._writer = writer
        self._most_bytes = HELLO_BYTES
        self._received = bytearray()

    @property
    def has_ended(self) -> bool:
        """True if no more messages can come: the member has closed the connection, or it broke."""
        return self._reader.at_eof() or self._writer.transport.is_closing()

    async def secure(self, tls: Tls) -> str:
        """Switch to TLS, before anything else is awaited: bytes that were read earlier would be taken for lines.

        Returns:
            The member's name in the certificate that it shows.

        Raises:
            OSError: The handshake failed.
        """
        await self._writer.start_tls(tls.server, ssl_handshake_timeout=HELLO_S)
        return peer_name(self._writer.get_extra_info("ssl_object"))

    def allow_messages(self) -> None:
        """Allow lines of the length of messages: the connection is a member's."""
        self._most_bytes = MAX_LINE_BYTES

    async def receive(self) -> ControlMessage | None:
        """Return the next message, or None at the end of the stream or if the connection is superseded.

        Raises:
            ProtocolError: The line is too long, or is no message.
            OSError: The connection broke.
        """
        searched = 0
        while (end := self._received.find(b"\n", searched)) < 0 and len(self._received) <= self._most_bytes:
            searched = len(self._received)
            piece = await self._reader.read(PIECE_BYTES)
            if not piece and self._received:
                raise ConnectionError("the connection ended in the middle of a line")
            if not piece:
                return None
            self._received += piece
        if not 0 <= end <= self._most_bytes:
            raise ProtocolError(f"a line is longer than {self._most_bytes} bytes")
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return None if self.superseded else decode(line)

    def send(self, message: ControlMessage) -> None:
        """Send a message. Cuts the connection if the backlog is above MOST_UNREAD_BYTES."""
        self._writer.write(encode(message))
        waiting = self._writer.transport.get_write_buffer_size()
        if waiting > MOST_UNREAD_BYTES:
            self.cut(f"it does not read its messages: {waiting} bytes are unread, and the limit is {MOST_UNREAD_BYTES}")

    async def drain(self) -> None:
        """Wait until the kernel has taken all sent messages; with TLS, all but 64 KiB at most."""
        self._writer.transport.set_write_buffer_limits(high=0)  # by default asyncio waits for more than 64 KiB alone
        await self._writer.drain()

    def cut(self, why: str) -> None:
        """End the connection at once and drop the backlog. Messages that were received before can still be read."""
        self.why = self.why or why
        self._writer.transport.abort()

    def close(self) -> None:
        """End the connection once the kernel has taken all sent messages."""
        self._writer.close()


class UnauthenticatedConnections:
    """Connections that are not authenticated yet, at most MOST_UNAUTHENTICATED.

    The oldest is cut when another comes, so that silent connections keep no member out.
    """

    def __init__(self) -> None:
        self._waiting: dict[Connection, None] = {}

    @contextmanager
    def counted(self, connection: Connection) -> Iterator[None]:
        """Count a connection as not authenticated within this context."""
        if len(self._waiting) >= MOST_UNAUTHENTICATED:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]  # at once: another one that comes in this turn of the loop cuts the next
            oldest.cut(f"it sent no hello, and {MOST_UNAUTHENTICATED} other connections wait for theirs")
        self._waiting[connection] = None
        try:
            yield
        finally:
            self._waiting.pop(connection, None)
