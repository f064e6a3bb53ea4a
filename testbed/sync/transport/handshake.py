"""The settings of a member's connections, and how two members authenticate on a new one.

Members authenticate by TLS certificates, if these are in use, and then by the key that both members share:

    connecting member                                listening member
      greeting with a nonce         ------------->
                                    <-------------      nonce, proof
      proof                         ------------->

A proof is an HMAC-SHA256 with the key that the controller gave to these two members alone. It covers the role of the
member that makes it, the whole greeting (version, channel, stream, generation, the connecting member's nonce and name),
the listening member's name and its nonce. So a proof can't be used again, sent back, or shown to another member, and
nobody without the key can claim a member's name or its generation.

Without TLS, the frames that follow are not protected: an attacker on the path can change them.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from testbed.sockets import Tls, peer_name
from testbed.sync.errors import FrameError, ImpostorError
from testbed.sync.transport.frame import GREETING_BYTES, NONCE_BYTES, WELCOME, Greeting

#: The longest wait in seconds for a thread to end. Threads end at once; this limit is for a machine that is too busy.
CLOSE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """How one member connects to its peers."""

    #: The member's name.
    member: str
    #: The keys that the member shares with each other member, by name. Keys of members that join later are added.
    keys: Mapping[str, bytes] = field(repr=False)
    #: Seconds after which a connection is given up.
    timeout_s: float
    #: Connections to each peer.
    streams: int = 1
    #: The congestion control; empty for the kernel's default.
    congestion: str = ""
    #: See Greeting.
    generation: int = 0
    #: This member's certificate. With it connections are encrypted, and the peer must show a certificate of its name.
    tls: Tls | None = field(default=None, repr=False, compare=False)


_PROOF_BYTES: Final = 32
_CONNECTS, _LISTENS = b"connects", b"listens"

#: Seconds between two checks of whether the connection was given up.
_POLL_S = 0.1


def greet(
    connection: socket.socket,
    greeting: Greeting,
    peer: str,
    settings: TransportSettings,
    deadline: float,
    given_up: Callable[[], bool] = lambda: False,
) -> socket.socket:
    """Authenticate `peer` on a connection to it, and this member to the peer.

    Args:
        connection: The connection. Under TLS the caller must use the returned one in its place.
        greeting: This member's greeting.
        peer: The peer's name.
        settings: This member's settings.
        deadline: The time (monotonic) at which to give up.
        given_up: Returns True once the caller needs no connection any more.

    Returns:
        The connection for frames.

    Raises:
        OSError: The connection ended, was given up, or the deadline has passed.
        ImpostorError: The other end is not the peer.
    """
    if settings.tls is None:
        _prove(connection, greeting, peer, settings, deadline, given_up)
        return connection
    secured = settings.tls.opened(connection)
    try:
        _shake(secured, deadline, given_up)
        _check_certificate(secured, peer)
        _prove(secured, greeting, peer, settings, deadline, given_up)
    except ssl.SSLCertVerificationError as error:
        secured.close()
        raise ImpostorError(
            f"the process at the address of {peer} has no valid certificate of {peer}: {error.verify_message}",
            rule="certificate",
            member=peer,
        ) from error
    except BaseException:
        secured.close()
        raise
    return secured


def _prove(
    connection: socket.socket,
    greeting: Greeting,
    peer: str,
    settings: TransportSettings,
    deadline: float,
    given_up: Callable[[], bool],
) -> None:
    """Send the greeting, check the peer's proof and send this member's."""
    key = _key(settings, peer)
    packed = greeting.pack(secrets.token_bytes(NONCE_BYTES))
    connection.sendall(packed)
    answer = _receive(connection, NONCE_BYTES + _PROOF_BYTES, deadline, given_up)
    nonce, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(key, _LISTENS, packed, peer, nonce)):
        raise ImpostorError(
            f"the process at the address of {peer} does not have the key of {greeting.member} and {peer}",
            rule="key",
            member=peer,
        )
    connection.sendall(_proof(key, _CONNECTS, packed, peer, nonce))
    connection.settimeout(None)


def await_welcome(connection: socket.socket, deadline: float, given_up: Callable[[], bool]) -> None:
    """Wait until a peer that was greeted on a channel for auxiliary routes takes frames to forward; see `greet`.

    Raises:
        OSError: The connection ended, was given up, or the deadline has passed.
    """
    _receive(connection, len(WELCOME), deadline, given_up)
    connection.settimeout(None)


def answer(connection: socket.socket, settings: TransportSettings, deadline: float) -> Greeting:
    """Authenticate the member that has connected, by a deadline (monotonic), and return its greeting.

    Raises:
        OSError: The connection ended, or the deadline has passed.
        FrameError: The other end is not a member.
        ImpostorError: The other end is not the member whose name it gives.
    """
    if isinstance(connection, ssl.SSLSocket):
        _shake(connection, deadline)
    head = _receive(connection, GREETING_BYTES, deadline)
    name = _receive(connection, Greeting.name_bytes(head), deadline)
    greeting, packed, nonce = Greeting.unpack(head, name), head + name, secrets.token_bytes(NONCE_BYTES)
    key = _key(settings, greeting.member)
    _check_certificate(connection, greeting.member)
    connection.sendall(nonce + _proof(key, _LISTENS, packed, settings.member, nonce))
    proof = _receive(connection, _PROOF_BYTES, deadline)
    if not hmac.compare_digest(proof, _proof(key, _CONNECTS, packed, settings.member, nonce)):
        raise ImpostorError(
            f"a peer greeted as {greeting.member} without that member's key", rule="key", member=greeting.member
        )
    connection.settimeout(None)
    return greeting


def _key(settings: TransportSettings, peer: str) -> bytes:
    if (key := settings.keys.get(peer)) is None:
        raise FrameError(
            f"{peer!r} is not a member: the controller gave {settings.member} no key for it",
            rule="unknown-member",
            member=peer,
        )
    return key


def _proof(key: bytes, role: bytes, packed: bytes, listener: str, nonce: bytes) -> bytes:
    # Unambiguous: the role ends with a zero, the greeting states its length, and a nonce has a fixed one.
    return hmac.digest(key, role + b"\0" + packed + nonce + listener.encode(), "sha256")


def _check_certificate(connection: socket.socket, name: str) -> None:
    """Raise ImpostorError if the other end has shown a certificate of another name."""
    if isinstance(connection, ssl.SSLSocket) and peer_name(connection) != name:
        raise ImpostorError(
            f"the peer that should be {name} has the certificate of {peer_name(connection) or 'nobody'}",
            rule="certificate",
            member=name,
        )


def _shake(connection: ssl.SSLSocket, deadline: float, given_up: Callable[[], bool] = lambda: False) -> None:
    """Do the TLS handshake, until the deadline or until the connection is given up."""
    while True:
        _wait_at_most(connection, deadline, given_up, "the TLS handshake did not end in time")
        with suppress(TimeoutError):
            connection.do_handshake()
            return


def _receive(
    connection: socket.socket, size: int, deadline: float, given_up: Callable[[], bool] = lambda: False
) -> bytes:
    got = b""
    while len(got) < size:
        _wait_at_most(
            connection, deadline, given_up, f"the greeting did not end in time: {len(got)} of {size} bytes came"
        )
        try:
            part = connection.recv(size - len(got))
        except TimeoutError:
            continue
        if not part:
            raise ConnectionError("the peer closed the connection in the middle of the greeting")
        got += part
    return got


def _wait_at_most(connection: socket.socket, deadline: float, given_up: Callable[[], bool], failure: str) -> None:
    """Limit the next read to _POLL_S; raise TimeoutError after the deadline, or once the connection is given up."""
    left = deadline - time.monotonic()
    if left <= 0 or given_up():
        raise TimeoutError(failure)
    connection.settimeout(min(left, _POLL_S))
