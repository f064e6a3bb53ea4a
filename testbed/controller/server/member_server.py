"""The controller's server for members: a stream server for the control protocol, one message a line."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from testbed.controller.model.actions import Contradiction, JoinRefused
from testbed.controller.model.identity import Identities
from testbed.controller.server.connection import HELLO_S, PIECE_BYTES, Connection, UnauthenticatedConnections
from testbed.errors import BAD_INPUT, NOT_HERE, DetailedError
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
    Unreached,
)
from testbed.schema import brief
from testbed.sockets import Tls, is_host, keep_alive, unix_address

log = logging.getLogger(__name__)

#: The name of a member's socket in its folder.
SOCKET = "control.sock"

#: The reason that members are told when the controller ends before their training does.
STOPPED = "the controller was stopped"

#: The messages that members may send once they have joined.
MEMBER_MESSAGES = (Report, Arrived, Held, Renew, Lost, Unreached, Holding, PromiseGraph, Goodbye)


@dataclass(frozen=True, slots=True)
class TcpEndpoint:
    """The address at which members of other machines connect."""

    host: str
    port: int
    #: If given, connections are encrypted and members show certificates.
    tls: Tls | None = None
    #: A socket that listens at the address already, or None if the server must make it.
    listening: socket.socket | None = None


class AddressError(DetailedError, ValueError):
    """Members of other machines can't connect at an address: it is taken, or is no address of this machine."""

    exit_code = BAD_INPUT


class MemberListener(Protocol):
    """Handles the members' messages. Called from the event loop, one message at a time."""

    def joined(self, hello: Hello, rejoin: Rejoin | None) -> None:
        """Handle a member that joins, or that reconnects (`rejoin`).

        Raises:
            Contradiction: The member comes too late, or its state is impossible.
        """

    def received(self, message: ControlMessage) -> None:
        """Handle a message of a connected member.

        Raises:
            Contradiction: The message is impossible.
        """

    def died(self, member: str, why: str, for_good: bool) -> None:
        """Handle the end of a member's connection before its Goodbye.

        A member is excluded `for_good` if it sent an impossible message, or does not read.
        """


@dataclass(frozen=True, slots=True)
class EarlyMember:
    """A member that waits for the next training."""

    connection: Connection
    hello: Hello
    #: The member that the socket or the certificate belongs to; None over TCP without a certificate.
    owner: str | None


class _TooEarly(Exception):
    """A member connected before its training began; its connection is kept."""


class MemberServer:
    """Accepts the members and passes their messages to a listener.

    Each member has a Unix socket in its own folder, `folder`/NAME. The folder is mounted into that member's container
    alone, so that the socket identifies the member. Over TCP a member shows its token, or with TLS its certificate.

    A member's connection is closed at its Goodbye, which tells the member that the Goodbye was read.

    Args:
        folder: The folder of the members' folders.
        identities: The members, their tokens and keys.
        listener: Handles the members' messages.
        tcp: The address for members of other machines, or None.
        elastic: A member may join any number of times; otherwise once.
        stays_after_goodbye: A connection stays open after the Goodbye until the member closes it, unless the member
            left by an error.
        takes_next: A member that comes after this training, or after it has left this training, waits for the next one
            (see `begin_next`).
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
        #: True once the training is over.
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
        self._unauthenticated = UnauthenticatedConnections()
        self._known: set[str] = set()
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        """Listen at the members' Unix sockets, and at the TCP endpoint if there is one.

        Raises:
            AddressError: The endpoint's address is taken, or is none of this machine's.
            OSError: The kernel refuses a socket.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        for member in self._identities.members:
            await self.listen_for(member)
        if self._tcp is not None:
            self._servers.append(await self._listen_over_tcp(self._tcp))

    async def listen_for(self, member: str) -> None:
        """Listen at a member's own socket."""
        at_socket, listening = partial(self._serve, member), _member_socket(self._folder / member)
        self._servers.append(await asyncio.start_unix_server(at_socket, sock=listening, limit=PIECE_BYTES))

    async def _listen_over_tcp(self, tcp: TcpEndpoint) -> asyncio.Server:
        serve = partial(self._serve, None)
        if tcp.listening is not None:
            return await asyncio.start_server(serve, sock=tcp.listening, limit=PIECE_BYTES)
        try:
            return await asyncio.start_server(serve, tcp.host, tcp.port, limit=PIECE_BYTES)
        except OSError as error:
            place = f"{tcp.host}:{tcp.port}"
            if error.errno in NOT_HERE:  # asyncio's error does not name the address
                raise OSError(error.errno, os.strerror(error.errno), place) from error
            number = error.errno or 0  # below 0: the resolver's
            why = os.strerror(number) if number > 0 else error.strerror or error
            text = f"{place}: {why}. Write an address of this machine (0.0.0.0 stands for all) and a port that is free"
            raise AddressError(text, host=tcp.host, rule="listen") from error

    def begin_next(self, identities: Identities, listener: MemberListener) -> None:
        """Close the connections of this training, and serve the next one, first the members that still wait for it."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._known.clear()
        self._identities, self._listener, self.over = identities, listener, False
        waiting, self._early = (self._early or {}).values(), {}
        for early in waiting:
            if early.connection.has_ended:  # its member joins by another connection, or not at all
                early.connection.close()
                continue
            task = asyncio.create_task(self._serve_connection(early.owner, early.connection, early.hello))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        for early in (self._early or {}).values():
            early.connection.send(Stop(STOPPED))
            early.connection.close()
        for server in self._servers:
            server.close()
        for connection in self._connections.values():
            connection.close()
        for member in self._identities.members:  # the folders stay, because containers have them mounted
            (self._folder / member / SOCKET).unlink(missing_ok=True)

    def send(self, member: str, message: ControlMessage) -> None:
        """Send a message to a member; dropped when the member is not connected."""
        if connection := self._connections.get(member):
            connection.send(message)

    def send_all(self, message: ControlMessage) -> None:
        """Send a message to every connected member."""
        for member in self._connections:
            self.send(member, message)

    def stop_all(self, reason: str) -> None:
        """Tell every connected member to stop, with the reason."""
        self.send_all(Stop(brief(reason)))

    @property
    def local(self) -> bool:
        """True if members connect at their Unix sockets only."""
        return self._tcp is None

    @property
    def early(self) -> frozenset[str]:
        """The members that wait for the next training."""
        return frozenset(self._early or ())

    def connected(self, member: str) -> bool:
        """Return whether a member is connected."""
        return member in self._connections

    async def flush(self, timeout_s: float) -> None:
        """Wait until the kernel has taken all sent messages, at most `timeout_s` seconds: a member may be stuck."""
        drains = [connection.drain() for connection in self._connections.values()]
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*drains, return_exceptions=True)
        except TimeoutError:
            log.warning("a member did not read its last messages within %s s", timeout_s)

    async def _serve(self, owner: str | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        keep_alive(writer.get_extra_info("socket"))
        await self._serve_connection(owner, Connection(reader, writer))

    async def _serve_connection(self, owner: str | None, connection: Connection, hello: Hello | None = None) -> None:
        """Serve a connection to its end, at the socket of the member `owner` or over TCP (None).

        A connection that waited for this training has sent its `hello` already.
        """
        member = None
        try:
            member = await self._admit(owner, connection, hello)
            await self._serve_member(member, connection)
        except _TooEarly:
            return  # kept for the next training
        except Contradiction as refusal:
            log.warning("refused a member: %s", refusal)
            connection.send(Stop(reason=brief(str(refusal))))
        except (ProtocolError, TimeoutError, OSError) as error:  # before authentication: no member's connection
            why = connection.why or str(error) or f"nothing came within {HELLO_S:g} s"
            log.warning("closed a connection that sent no valid hello: %s", why)
            connection.send(Stop(reason=brief(f"the connection sent no valid hello: {why}")))
        finally:
            if member is not None and self._connections.get(member) is connection:
                del self._connections[member]
            if not self._is_early(connection):
                connection.close()

    async def _admit(self, owner: str | None, connection: Connection, hello: Hello | None) -> str:
        """Authenticate a connection, and return its member.

        Raises:
            JoinRefused: The member may not join.
            ProtocolError: The first message is no hello.
            TimeoutError: The hello took longer than HELLO_S.
            _TooEarly: The member waits for the next training.
        """
        with self._unauthenticated.counted(connection):
            async with asyncio.timeout(HELLO_S):
                if hello is None and owner is None and self._tcp is not None and self._tcp.tls is not None:
                    owner = await connection.secure(self._tcp.tls)
                hello = self._check(hello or await connection.receive(), owner)
        if self._early is not None and self._comes_early(hello):
            before = self._early.get(hello.member)
            self._early[hello.member] = EarlyMember(connection, hello, owner)
            if before is not None:
                before.connection.cut("the member made a new connection")
            log.info("%s waits for the next training", hello.member)
            raise _TooEarly
        if hello.member in self._known and not self._elastic:
            if self._has_left(hello.member):
                raise JoinRefused(
                    f"{hello.member!r} has left this training, which is still on and takes no member twice; "
                    "start it again when the training is over"
                )
            raise JoinRefused(
                f"{hello.member!r} has joined already over another connection; end that process, or use another name"
            )
        connection.allow_messages()
        self._join(hello, await self._rejoin(hello, connection) if hello.returns else None, connection)
        return hello.member

    async def _rejoin(self, hello: Hello, connection: Connection) -> Rejoin:
        async with asyncio.timeout(HELLO_S):
            rejoin = await connection.receive()
        if not isinstance(rejoin, Rejoin) or rejoin.member != hello.member:
            raise JoinRefused(
                f"{hello.member!r} reconnected, and sent no state (Rejoin) after its hello; start it again"
            )
        return rejoin

    def _check(self, hello: ControlMessage | None, owner: str | None) -> Hello:
        """Authenticate a hello."""
        if not isinstance(hello, Hello):
            first = f"a {hello.kind}" if hello else "its end"
            raise ProtocolError(f"the first message must be a hello; the connection began with {first}")
        if hello.version != PROTOCOL_VERSION:
            raise JoinRefused(
                f"{hello.member!r} speaks version {hello.version} of the protocol, and the controller version "
                f"{PROTOCOL_VERSION}: install the same release on both machines"
            )
        if refusal := self._identities.refusal(hello.member, hello.token, owner):
            raise JoinRefused(refusal)
        host, _ = hello.address
        if not is_host(host):  # its peers' functions of sockets would raise UnicodeError or TypeError
            raise JoinRefused(
                f"{hello.member!r} listens at {host!r}, which is no host's name or address; start it again with the "
                "address at which the other members reach it"
            )
        return hello

    def _comes_early(self, hello: Hello) -> bool:
        """Return whether a member can only join the next training."""
        if hello.returns:
            return False
        return self.over or (not self._elastic and self._has_left(hello.member))

    def _has_left(self, member: str) -> bool:
        return member in self._known and member not in self._connections

    def _is_early(self, connection: Connection) -> bool:
        return any(early.connection is connection for early in (self._early or {}).values())

    def _join(self, hello: Hello, rejoin: Rejoin | None, connection: Connection) -> None:
        """Pass a member to the listener. An earlier connection of the member is cut.

        The rest of the messages of an earlier process of the member is dropped: its goodbye is not the new process's.
        """
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
            before.superseded = rejoin is None
            before.cut("the member made a new connection")

    async def _serve_member(self, member: str, connection: Connection) -> None:
        """Serve a member until its connection ends, and report the end unless the member has a newer connection."""
        for_good = True
        try:
            why = await self._listen(member, connection)
            for_good = bool(connection.why)
        except (ProtocolError, Contradiction) as error:
            why = str(error)
        except Exception as error:
            log.exception("internal error of the controller while it handled a message of %s", member)
            why = f"internal error of the controller while it handled a message: {error!r}; its log has the traceback"
        if why is not None and self._connections.get(member) is connection:
            self._listener.died(member, brief(connection.why or why), for_good)

    async def _listen(self, member: str, connection: Connection) -> str | None:
        """Pass on a member's messages until its connection ends.

        Returns:
            None after its Goodbye, else how the connection ended.

        Raises:
            ProtocolError, Contradiction: A message is malformed or impossible.
        """
        done, listener = False, self._listener
        try:
            while message := await connection.receive():
                if listener is not self._listener:  # the member's training is over
                    return None
                speaker = getattr(message, "member", None)
                if speaker != member:
                    raise Contradiction(f"it sent a {message.kind} in the name of {speaker!r}", member=member)
                if not isinstance(message, MEMBER_MESSAGES):
                    raise Contradiction(f"it sent a {message.kind}, which members do not send", member=member)
                self._listener.received(message)
                done = done or isinstance(message, Goodbye)
                failed = isinstance(message, Goodbye) and bool(message.error)
                if done and (failed or not self._stays_after_goodbye):
                    return None
                await asyncio.sleep(0)  # let other members' earlier messages be handled before this member's next one
        except OSError as error:
            return None if done else str(error)
        except (ProtocolError, Contradiction):
            if not done:
                raise
        return None if done else "its connection ended before its goodbye"


def _member_socket(folder: Path) -> socket.socket:
    """Return the socket in a member's folder, listening.

    The program in the member's container may run as another user, so the socket admits all users. The folder above the
    members' folders admits only its owner.
    """
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    (folder / SOCKET).unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with unix_address(folder / SOCKET) as short:
        listening.bind(short)
    (folder / SOCKET).chmod(0o666)
    return listening
