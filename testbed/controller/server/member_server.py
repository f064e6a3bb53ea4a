"""The members' side of the controller: a stream server that speaks the control protocol, a line a message."""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from testbed.controller.model.contradiction import Contradiction, JoinRefused
from testbed.controller.model.identity import Identities
from testbed.controller.server.connection import HELLO_S, PIECE_BYTES, Connection, Strangers
from testbed.protocol import (
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
    Rejoin,
    Renew,
    Report,
    Stop,
)
from testbed.schema import brief
from testbed.sockets import Tls, unix_address

log = logging.getLogger(__name__)

#: A member's socket, in its folder.
SOCKET = "control.sock"

#: What members say once they are let in.
SAID = (Report, Arrived, Held, Renew, Lost, Holding, PromiseGraph, Goodbye)


@dataclass(frozen=True, slots=True)
class TcpEndpoint:
    """Where members come from other machines; with `tls` they show certificates.

    `listening` is a socket that is bound and listens there already, or None where the server is to make one.
    """

    host: str
    port: int
    tls: Tls | None = None
    listening: socket.socket | None = None


class MemberListener(Protocol):
    """Who hears of the members. Called from the event loop, one message at a time."""

    def joined(self, hello: Hello, rejoin: Rejoin | None) -> None:
        """A member is there. Contradiction when it comes too late, or says of itself what can't be."""

    def heard(self, message: ControlMessage) -> None:
        """A member that is there says something. Contradiction when that can't be."""

    def died(self, member: str, why: str) -> None:
        """A member's connection ended before its Goodbye."""

    def excluded(self, member: str, why: str) -> None:
        """A member said what can't be, or does not listen: it is no longer heard."""


@dataclass(frozen=True, slots=True)
class EarlyMember:
    """A member that came for the next training: its hello, and whose connection it is by a socket or a certificate."""

    connection: Connection
    hello: Hello
    owner: str | None


class _TooEarly(Exception):
    """A member comes while the training before its own goes on."""


class MemberServer:
    """Accepts the members and passes on what they say: each at a Unix socket of its own, and over TCP if asked to.

    A member's socket is in a folder of its own, `folder`/NAME, that is mounted into its container and nobody else's:
    who comes in there is that member. Over TCP it shows its token, or with TLS its certificate. Each is let in once,
    or, where they are `elastic`, whenever it comes.

    A member's connection is closed at its Goodbye, which tells the member that the Goodbye was read. With
    `stays_after_goodbye` the connection stays open until the member closes it, unless the member left by an error.

    With `takes_next` a member that comes when this training is over, or when it has left it, waits for the next one:
    `begin_anew`.
    """

    def __init__(
        self,
        folder: Path,
        identities: Identities,
        listener: MemberListener,
        tcp: TcpEndpoint | None = None,
        elastic: bool = False,
        stays_after_goodbye: bool = False,
        takes_next: bool = False,
    ) -> None:
        #: Whether the training is over.
        self.over = False
        self._early: dict[str, EarlyMember] | None = {} if takes_next else None
        self._tasks: set[asyncio.Task[None]] = set()
        self._elastic = elastic
        self._stays_after_goodbye = stays_after_goodbye
        self._folder = folder
        self._tcp = tcp
        self._identities = identities
        self._listener = listener
        self._connections: dict[str, Connection] = {}
        self._strangers = Strangers()
        self._known: set[str] = set()
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        """Listen."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        for member in self._identities.members:
            await self.listen_for(member)
        if self._tcp is not None:
            over_tcp = partial(self._serve, None)
            if self._tcp.listening is not None:
                server = await asyncio.start_server(over_tcp, sock=self._tcp.listening, limit=PIECE_BYTES)
            else:
                server = await asyncio.start_server(over_tcp, self._tcp.host, self._tcp.port, limit=PIECE_BYTES)
            self._servers.append(server)

    async def listen_for(self, member: str) -> None:
        """Listen at a member's own socket."""
        at_socket, listening = partial(self._serve, member), _member_socket(self._folder / member)
        self._servers.append(await asyncio.start_unix_server(at_socket, sock=listening, limit=PIECE_BYTES))

    def begin_anew(self, identities: Identities, listener: MemberListener) -> None:
        """Hang up on the members that are still there, and serve the next training, with those that wait for it."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._known.clear()
        self._identities, self._listener, self.over = identities, listener, False
        waiting, self._early = (self._early or {}).values(), {}
        for early in waiting:
            task = asyncio.create_task(self._serve_connection(early.owner, early.connection, early.hello))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop listening and hang up."""
        for early in (self._early or {}).values():
            early.connection.send(Stop("the controller was ended"))
            early.connection.close()
        for server in self._servers:
            server.close()
        for connection in self._connections.values():
            connection.close()
        for member in self._identities.members:  # their folders stay: containers have them mounted
            (self._folder / member / SOCKET).unlink(missing_ok=True)

    def send(self, member: str, message: ControlMessage) -> None:
        """Send to a member that is there; nothing happens when it is not."""
        if connection := self._connections.get(member):
            connection.send(message)

    def send_all(self, message: ControlMessage) -> None:
        """Send to every member that is there."""
        for member in self._connections:
            self.send(member, message)

    def stop_all(self, reason: str) -> None:
        """Tell every member that is there to leave, and why."""
        self.send_all(Stop(brief(reason)))

    @property
    def local(self) -> bool:
        """Whether members come at their sockets alone."""
        return self._tcp is None

    @property
    def early(self) -> frozenset[str]:
        """The members that wait for the next training."""
        return frozenset(self._early or ())

    def connected(self, member: str) -> bool:
        """Whether it is there."""
        return member in self._connections

    async def flush(self, timeout_s: float) -> None:
        """Wait until what was sent is with the kernel, at most `timeout_s`: a stuck member must not hold us."""
        drains = [connection.drain() for connection in self._connections.values()]
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*drains, return_exceptions=True)
        except TimeoutError:
            log.warning("a member did not take its messages within %s s", timeout_s)

    async def _serve(self, owner: str | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection at the socket of the member `owner`, or over TCP (None)."""
        await self._serve_connection(owner, Connection(reader, writer))

    async def _serve_connection(self, owner: str | None, connection: Connection, hello: Hello | None = None) -> None:
        """Serve a connection to its end. Its `hello` is given where it waited for this training."""
        member = None
        try:
            member = await self._admit(owner, connection, hello)
            await self._attend(member, connection)
        except _TooEarly:
            return  # kept for the next training
        except Contradiction as refusal:
            log.warning("refused a member: %s", refusal)
            connection.send(Stop(reason=brief(str(refusal))))
        except (ProtocolError, TimeoutError, OSError) as error:  # before it was let in: nobody's connection
            why = connection.why or str(error) or f"nothing came within {HELLO_S:g} s"
            log.warning("hung up on a stranger: %s", why)
            connection.send(Stop(reason=brief(f"this was no hello: {why}")))
        finally:
            if member is not None and self._connections.get(member) is connection:
                del self._connections[member]
            if not self._is_early(connection):
                connection.close()

    async def _admit(self, owner: str | None, connection: Connection, hello: Hello | None) -> str:
        """Who it is that comes in. JoinRefused, ProtocolError or, when it takes long, TimeoutError when nobody may."""
        with self._strangers.one_more(connection):
            async with asyncio.timeout(HELLO_S):
                if hello is None and owner is None and self._tcp is not None and self._tcp.tls is not None:
                    owner = await connection.secure(self._tcp.tls)
                hello = self._check(hello or await connection.receive(), owner)
        if self._early is not None and self._comes_early(hello):
            before = self._early.get(hello.member)
            self._early[hello.member] = EarlyMember(connection, hello, owner)
            if before is not None:
                before.connection.cut("it came anew")
            log.info("%s waits for the next training", hello.member)
            raise _TooEarly
        if hello.member in self._known and not self._elastic:
            left = "has left this training, which goes on" if self._has_left(hello.member) else "is there already"
            raise JoinRefused(f"{hello.member!r} {left}")
        connection.let_in()
        self._let_in(hello, await self._rejoin(hello, connection) if hello.returns else None, connection)
        return hello.member

    async def _rejoin(self, hello: Hello, connection: Connection) -> Rejoin:
        """Where a member stands that was there before."""
        async with asyncio.timeout(HELLO_S):
            rejoin = await connection.receive()
        if not isinstance(rejoin, Rejoin) or rejoin.member != hello.member:
            raise JoinRefused(f"{hello.member!r} returns, and does not say where it stands")
        return rejoin

    def _check(self, hello: ControlMessage | None, owner: str | None) -> Hello:
        """The hello of who may come in."""
        if not isinstance(hello, Hello):
            raise ProtocolError(f"a connection must begin with hello, not {hello.kind if hello else 'its end'}")
        if hello.version != PROTOCOL_VERSION:
            raise JoinRefused(f"{hello.member!r} speaks protocol {hello.version}, the controller {PROTOCOL_VERSION}")
        if refusal := self._identities.refusal(hello.member, hello.token, owner):
            raise JoinRefused(refusal)
        return hello

    def _comes_early(self, hello: Hello) -> bool:
        """Return whether a member can only be meant for the next training."""
        if hello.returns:
            return False
        return self.over or (not self._elastic and self._has_left(hello.member))

    def _has_left(self, member: str) -> bool:
        return member in self._known and member not in self._connections

    def _is_early(self, connection: Connection) -> bool:
        return any(early.connection is connection for early in (self._early or {}).values())

    def _let_in(self, hello: Hello, rejoin: Rejoin | None, connection: Connection) -> None:
        """It is there. One that was there before under its name is so no longer."""
        before = self._connections.get(hello.member)
        self._connections[hello.member] = connection
        try:
            self._listener.joined(hello, rejoin)
        except Contradiction:
            del self._connections[hello.member]
            if before is not None:
                self._connections[hello.member] = before
            raise
        self._known.add(hello.member)
        if before is not None:
            before.cut("it came anew")

    async def _attend(self, member: str, connection: Connection) -> None:
        """Hear a member to its end, and tell of that, unless it came anew meanwhile."""
        tell = self._listener.excluded
        try:
            why = await self._listen(member, connection)
            if not connection.why:
                tell = self._listener.died
        except (ProtocolError, Contradiction) as error:
            why = str(error)
        except Exception as error:
            log.exception("what %s said", member)
            why = f"what it said could not be read: {error!r}"
        if why is not None and self._connections.get(member) is connection:
            tell(member, brief(connection.why or why))

    async def _listen(self, member: str, connection: Connection) -> str | None:
        """Pass on a member's messages until its connection ends; None after its Goodbye, else how it did. ProtocolError
        or Contradiction when it says what can't be.
        """
        done, listener = False, self._listener
        try:
            while message := await connection.receive():
                if listener is not self._listener:  # the member's training is over
                    return None
                speaker = getattr(message, "member", None)
                if speaker != member:
                    raise Contradiction(f"a {message.kind} in the name of {speaker!r}")
                if not isinstance(message, SAID):
                    raise Contradiction(f"an unexpected {message.kind}")
                self._listener.heard(message)
                done = done or isinstance(message, Goodbye)
                failed = isinstance(message, Goodbye) and bool(message.error)
                if done and (failed or not self._stays_after_goodbye):
                    return None
                await asyncio.sleep(0)  # others' turn: what one has ready must not come before what they said earlier
        except OSError as error:
            return None if done else str(error)
        except (ProtocolError, Contradiction):
            if not done:
                raise
        return None if done else "its connection ended before its goodbye"


def _member_socket(folder: Path) -> socket.socket:
    """The socket in a member's folder. Its container's program may be another user: the socket lets all users in, the
    folder above those of the members lets in none but its owner."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    (folder / SOCKET).unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with unix_address(folder / SOCKET) as short:
        listening.bind(short)
    (folder / SOCKET).chmod(0o666)
    return listening
