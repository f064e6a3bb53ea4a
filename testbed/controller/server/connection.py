"""A connection from who says it is a member: lines in, of bounded length, and messages out, of bounded backlog."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from testbed.protocol import MAX_LINE_BYTES, ControlMessage, ProtocolError, decode, encode
from testbed.sockets import Tls, peer_name

#: The first line, from who may be anybody: a name, an address, a token.
HELLO_BYTES = 4096
#: Seconds that it may take. A member has it at hand as it connects; a round trip takes one at most.
HELLO_S = 10.0

#: What waits for a member that does not read. Members take messages in on a thread of their own, so that even a pause
#: of minutes leaves some KiB; a message of the greatest length must fit.
MOST_UNREAD_BYTES = MAX_LINE_BYTES

#: Connections at once that have not said yet who they are.
MOST_STRANGERS = 128

#: What is read at a time.
PIECE_BYTES = 64 * 1024


class Connection:
    """A stream over which messages come and go, a line each. `why` says why it was cut, if it was."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.why = ""
        self._reader = reader
        self._writer = writer
        self._most_bytes = HELLO_BYTES
        self._came = bytearray()

    async def secure(self, tls: Tls) -> str:
        """Go over to TLS; who the other end has shown to be. OSError when it has not.

        Nothing may be waited for before that: what came by then would be taken for lines.
        """
        await self._writer.start_tls(tls.server, ssl_handshake_timeout=HELLO_S)
        return peer_name(self._writer.get_extra_info("ssl_object"))

    def let_in(self) -> None:
        """It is a member's: from now on lines may be as long as messages are."""
        self._most_bytes = MAX_LINE_BYTES

    async def receive(self) -> ControlMessage | None:
        """The next message; None at the end of the stream. ProtocolError when the line is none, OSError when it broke
        off."""
        searched = 0
        while (end := self._came.find(b"\n", searched)) < 0 and len(self._came) <= self._most_bytes:
            searched = len(self._came)
            piece = await self._reader.read(PIECE_BYTES)
            if not piece and self._came:
                raise ConnectionError("its connection ended in the middle of a line")
            if not piece:
                return None
            self._came += piece
        if not 0 <= end <= self._most_bytes:
            raise ProtocolError(f"a line of more than {self._most_bytes} bytes")
        line = bytes(self._came[:end])
        del self._came[: end + 1]
        return decode(line)

    def send(self, message: ControlMessage) -> None:
        """Send a message; who lets too much wait is cut."""
        self._writer.write(encode(message))
        waiting = self._writer.transport.get_write_buffer_size()
        if waiting > MOST_UNREAD_BYTES:
            self.cut(f"it does not read: {waiting} bytes wait for it, and {MOST_UNREAD_BYTES} may")

    async def drain(self) -> None:
        """Wait until what was sent is with the kernel."""
        await self._writer.drain()

    def cut(self, why: str) -> None:
        """End it at once, whatever waits: whoever receives gets what came by now, and then its end."""
        self.why = self.why or why
        self._writer.transport.abort()

    def close(self) -> None:
        """End it, once what was sent is with the kernel."""
        self._writer.close()


class Strangers:
    """Those who have not said yet who they are. They are MOST_STRANGERS at most: the oldest goes when one more comes,
    so that who connects and says nothing keeps nobody out."""

    def __init__(self) -> None:
        self._waiting: dict[Connection, None] = {}

    @contextmanager
    def one_more(self, connection: Connection) -> Iterator[None]:
        """It is one for as long as this lasts."""
        if len(self._waiting) >= MOST_STRANGERS:
            next(iter(self._waiting)).cut("it did not say who it is, and others came")
        self._waiting[connection] = None
        try:
            yield
        finally:
            del self._waiting[connection]
