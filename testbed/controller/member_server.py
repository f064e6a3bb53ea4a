"""The members' side of the controller: a stream server that speaks the control protocol, a line a message."""

from __future__ import annotations

import asyncio
import hmac
import logging
from pathlib import Path
from typing import Protocol

from testbed.protocol import (
    MAX_LINE_BYTES,
    PROTOCOL_VERSION,
    Arrived,
    ControlMessage,
    Goodbye,
    Held,
    Hello,
    Holding,
    Lost,
    PromiseGraph,
    ProtocolError,
    Renew,
    Report,
    Stop,
    decode,
    encode,
)

log = logging.getLogger(__name__)

#: What members say once they are let in.
SAID = (Report, Arrived, Held, Renew, Lost, Holding, PromiseGraph, Goodbye)


class JoinRefused(Exception):
    """A member that is not let in; the text is told to it."""


class MemberListener(Protocol):
    """Who hears of the members. Called from the event loop, one message at a time."""

    def joined(self, hello: Hello) -> None:
        """A member is there. JoinRefused when it comes too late, or says of itself what can't be."""

    def heard(self, message: ControlMessage) -> None:
        """A member that is there says something. ValueError when that contradicts earlier messages."""

    def died(self, member: str, why: str) -> None:
        """A member's connection ended before its Goodbye."""


class MemberServer:
    """Accepts the named members and passes on what they say: at a Unix socket, and over TCP if asked to.

    Each is let in once, or, where they are `elastic`, whenever it comes.
    """

    def __init__(
        self,
        path: Path,
        members: tuple[str, ...],
        token: str,
        listener: MemberListener,
        tcp: tuple[str, int] | None = None,
        elastic: bool = False,
    ) -> None:
        self._elastic = elastic
        self._path = path
        self._tcp = tcp
        self._members = members
        self._token = token
        self._listener = listener
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._known: set[str] = set()
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        """Listen. The socket is open to all users: members' containers do not run as root, the token guards it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.unlink(missing_ok=True)
        self._servers.append(await asyncio.start_unix_server(self._serve, self._path, limit=MAX_LINE_BYTES))
        self._path.chmod(0o666)
        if self._tcp is not None:
            host, port = self._tcp
            self._servers.append(await asyncio.start_server(self._serve, host, port, limit=MAX_LINE_BYTES))

    async def close(self) -> None:
        """Stop listening and hang up."""
        for server in self._servers:
            server.close()
        for writer in self._writers.values():
            writer.close()
        self._path.unlink(missing_ok=True)

    def send(self, member: str, message: ControlMessage) -> None:
        """Send to a member that is there; nothing happens when it is not."""
        if writer := self._writers.get(member):
            writer.write(encode(message))

    def send_all(self, message: ControlMessage) -> None:
        """Send to every member that is there."""
        for member in self._writers:
            self.send(member, message)

    def connected(self, member: str) -> bool:
        """Whether it is there."""
        return member in self._writers

    async def flush(self, timeout_s: float) -> None:
        """Wait until what was sent is with the kernel, at most `timeout_s`: a stuck member must not hold us."""
        drains = [writer.drain() for writer in self._writers.values()]
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*drains, return_exceptions=True)
        except TimeoutError:
            log.warning("a member did not take its messages within %s s", timeout_s)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        member = None
        try:
            hello = await _read(reader)
            member = self._admit(hello, writer)
            why = await self._listen(member, reader)
            if why is not None and self._writers.get(member) is writer:
                self._listener.died(member, why)
        except JoinRefused as refusal:
            log.warning("refused a member: %s", refusal)
            writer.write(encode(Stop(reason=str(refusal))))
        except (ProtocolError, OSError) as error:  # before the Hello: nobody's connection
            log.warning("hung up on a stranger: %s", error)
        finally:
            if member is not None and self._writers.get(member) is writer:
                del self._writers[member]
            writer.close()

    def _admit(self, hello: ControlMessage | None, writer: asyncio.StreamWriter) -> str:
        if not isinstance(hello, Hello):
            raise ProtocolError(f"a connection must begin with hello, not {hello.kind if hello else 'its end'}")
        if hello.version != PROTOCOL_VERSION:
            raise JoinRefused(f"{hello.member!r} speaks protocol {hello.version}, the controller {PROTOCOL_VERSION}")
        if not hmac.compare_digest(hello.token.encode(errors="replace"), self._token.encode()):
            raise JoinRefused(f"{hello.member!r} has another token than this run's")
        if hello.member not in self._members:
            raise JoinRefused(f"{hello.member!r} is not a member of this run: {', '.join(self._members)}")
        if hello.member in self._known and not self._elastic:
            raise JoinRefused(f"{hello.member!r} is there already")
        self._known.add(hello.member)
        self._writers[hello.member] = writer
        try:
            self._listener.joined(hello)
        except JoinRefused:
            del self._writers[hello.member]
            raise
        return hello.member

    async def _listen(self, member: str, reader: asyncio.StreamReader) -> str | None:
        """Pass on a member's messages until it ends; None after its Goodbye, else what went wrong.

        Where they are elastic it stays after that: what it holds may still be asked for.
        """
        done = False
        try:
            while message := await _read(reader):
                speaker = getattr(message, "member", None)
                if speaker != member:
                    return f"a {message.kind} in the name of {speaker!r}"
                if not isinstance(message, SAID):
                    return f"an unexpected {message.kind}"
                self._listener.heard(message)
                done = done or isinstance(message, Goodbye)
                if done and not self._elastic:
                    return None
        except (ValueError, OSError) as error:
            return None if done else str(error)
        return None if done else "its connection ended before its goodbye"


async def _read(reader: asyncio.StreamReader) -> ControlMessage | None:
    """The next message; None at the end of the stream. ProtocolError when the line is none."""
    try:
        line = await reader.readline()
    except ValueError as error:  # the line is longer than the stream's limit
        raise ProtocolError(f"a line of more than {MAX_LINE_BYTES} bytes") from error
    if not line:
        return None
    if not line.endswith(b"\n"):
        raise ProtocolError("a line cut short")
    return decode(line)
