"""The members' side of the controller: a stream server that speaks the control protocol, a line a message."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from functools import partial
from pathlib import Path
from typing import Protocol

from testbed.controller.identity import Identities
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

#: A member's socket, in its folder.
SOCKET = "control.sock"

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
    """Accepts the members and passes on what they say: each at a Unix socket of its own, and over TCP if asked to.

    A member's socket is in a folder of its own, `folder`/NAME, that is mounted into its container and nobody else's:
    who comes in there is that member. Over TCP it shows its token. Each is let in once, or, where they are `elastic`,
    whenever it comes.
    """

    def __init__(
        self,
        folder: Path,
        identities: Identities,
        listener: MemberListener,
        tcp: tuple[str, int] | None = None,
        elastic: bool = False,
    ) -> None:
        self._elastic = elastic
        self._folder = folder
        self._tcp = tcp
        self._identities = identities
        self._listener = listener
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._known: set[str] = set()
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        """Listen."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        for member in self._identities.members:
            at_socket = partial(self._serve, member)
            server = await asyncio.start_unix_server(
                at_socket, sock=_member_socket(self._folder / member), limit=MAX_LINE_BYTES
            )
            self._servers.append(server)
        if self._tcp is not None:
            over_tcp = partial(self._serve, None)
            self._servers.append(await asyncio.start_server(over_tcp, *self._tcp, limit=MAX_LINE_BYTES))

    async def close(self) -> None:
        """Stop listening and hang up."""
        for server in self._servers:
            server.close()
        for writer in self._writers.values():
            writer.close()
        for member in self._identities.members:  # their folders stay: containers have them mounted
            (self._folder / member / SOCKET).unlink(missing_ok=True)

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

    async def _serve(self, owner: str | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection at the socket of the member `owner`, or over TCP (None)."""
        member = None
        try:
            hello = await _read(reader)
            member = self._admit(hello, owner, writer)
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

    def _admit(self, hello: ControlMessage | None, owner: str | None, writer: asyncio.StreamWriter) -> str:
        if not isinstance(hello, Hello):
            raise ProtocolError(f"a connection must begin with hello, not {hello.kind if hello else 'its end'}")
        if hello.version != PROTOCOL_VERSION:
            raise JoinRefused(f"{hello.member!r} speaks protocol {hello.version}, the controller {PROTOCOL_VERSION}")
        if refusal := self._identities.refusal(hello.member, hello.token, owner):
            raise JoinRefused(refusal)
        if hello.member in self._known and not self._elastic:
            raise JoinRefused(f"{hello.member!r} is there already")
        before = self._writers.get(hello.member)
        self._writers[hello.member] = writer
        try:
            self._listener.joined(hello)
        except JoinRefused:
            del self._writers[hello.member]
            if before is not None:  # it is still there as it was
                self._writers[hello.member] = before
            raise
        self._known.add(hello.member)
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


def _member_socket(folder: Path) -> socket.socket:
    """The socket in a member's folder. Its container's program may be another user: the socket lets all users in, the
    folder above those of the members lets in none but its owner."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    (folder / SOCKET).unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The folder's path, with the names of a run and of a member in it, may be longer than the 107 bytes of an address.
    opened = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        listening.bind(f"/proc/self/fd/{opened}/{SOCKET}")
    finally:
        os.close(opened)
    (folder / SOCKET).chmod(0o666)
    return listening


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
