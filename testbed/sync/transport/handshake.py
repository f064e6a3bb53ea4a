"""How two members make sure of each other on a new connection between them: each shows that it has their key, and,
where they have TLS, before that its certificate.

    who connects                                     who listens
      greeting, with a nonce        ------------->
                                    <-------------      its nonce, and its proof
      its proof                     ------------->

A proof is an HMAC-SHA256, with the key that the controller gave to these two members and to nobody else, over the role
of who makes it, the whole greeting (version, channel, stream, generation, nonce and name of who connects), the name of
who listens and its nonce. So none can be used again, sent back, or shown to another member; a name is worth nothing
without its key, and neither is a generation that somebody else claims for it.

What follows on a connection without TLS is not protected: who can change what is on its way can change that.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from testbed.sockets import peer_name
from testbed.sync.errors import FrameError, ImpostorError
from testbed.sync.transport.frame import GREETING_BYTES, NONCE_BYTES, Greeting
from testbed.sync.transport.settings import TransportSettings

_PROOF_BYTES: Final = 32
_CONNECTS, _LISTENS = b"connects", b"listens"

#: How often it is looked whether the connection is given up.
_LOOK_S = 0.1


def greet(
    connection: socket.socket,
    greeting: Greeting,
    peer: str,
    settings: TransportSettings,
    deadline: float,
    given_up: Callable[[], bool] = lambda: False,
) -> socket.socket:
    """Make sure that `peer` is at the other end, and show it who this is, by `deadline` (monotonic). The connection to
    be used from then on: under TLS another one, for the first is of no use then.

    OSError when the connection ends, or is given up; ImpostorError when somebody else is there.
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
            f"who listens where {peer} should: {error.verify_message}", rule="certificate", member=peer
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
    """Greet, and have each other's proof of the key."""
    key = _key(settings, peer)
    said = greeting.pack(secrets.token_bytes(NONCE_BYTES))
    connection.sendall(said)
    answer = _receive(connection, NONCE_BYTES + _PROOF_BYTES, deadline, given_up)
    nonce, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(key, _LISTENS, said, peer, nonce)):
        raise ImpostorError(
            f"who listens where {peer} should does not have the key of {greeting.member} and {peer}",
            rule="key",
            member=peer,
        )
    connection.sendall(_proof(key, _CONNECTS, said, peer, nonce))
    connection.settimeout(None)


def answer(connection: socket.socket, settings: TransportSettings, deadline: float) -> Greeting:
    """Who has connected, by `deadline` (monotonic).

    OSError when the connection ends, FrameError when it is no member, ImpostorError when it is not who it says.
    """
    if isinstance(connection, ssl.SSLSocket):
        _shake(connection, deadline)
    head = _receive(connection, GREETING_BYTES, deadline)
    name = _receive(connection, Greeting.name_bytes(head), deadline)
    greeting, said, nonce = Greeting.unpack(head, name), head + name, secrets.token_bytes(NONCE_BYTES)
    key = _key(settings, greeting.member)
    _check_certificate(connection, greeting.member)
    connection.sendall(nonce + _proof(key, _LISTENS, said, settings.member, nonce))
    proof = _receive(connection, _PROOF_BYTES, deadline)
    if not hmac.compare_digest(proof, _proof(key, _CONNECTS, said, settings.member, nonce)):
        raise ImpostorError(
            f"who greets as {greeting.member} does not have the key of that member", rule="key", member=greeting.member
        )
    connection.settimeout(None)
    return greeting


def _key(settings: TransportSettings, peer: str) -> bytes:
    if (key := settings.keys.get(peer)) is None:
        raise FrameError(
            f"{peer!r} is no other member: the controller gave {settings.member} no key for it",
            rule="unknown-member",
            member=peer,
        )
    return key


def _proof(key: bytes, role: bytes, said: bytes, listener: str, nonce: bytes) -> bytes:
    """All parts but the last two tell their own length, and a nonce has one."""
    return hmac.digest(key, role + b"\0" + said + nonce + listener.encode(), "sha256")


def _check_certificate(connection: socket.socket, name: str) -> None:
    """ImpostorError when the other end has shown one, and it is not that of `name`."""
    if isinstance(connection, ssl.SSLSocket) and peer_name(connection) != name:
        raise ImpostorError(
            f"who goes by {name} has the certificate of {peer_name(connection) or 'nobody'}",
            rule="certificate",
            member=name,
        )


def _shake(connection: ssl.SSLSocket, deadline: float, given_up: Callable[[], bool] = lambda: False) -> None:
    """Do the handshake of TLS."""
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or given_up():
            raise TimeoutError("the handshake of TLS was not over in time")
        connection.settimeout(min(left, _LOOK_S))
        with suppress(TimeoutError):
            connection.do_handshake()
            return


def _receive(
    connection: socket.socket, size: int, deadline: float, given_up: Callable[[], bool] = lambda: False
) -> bytes:
    got = b""
    while len(got) < size:
        left = deadline - time.monotonic()
        if left <= 0 or given_up():
            raise TimeoutError(f"the greeting was not over in time: {len(got)} of {size} bytes came")
        connection.settimeout(min(left, _LOOK_S))
        try:
            part = connection.recv(size - len(got))
        except TimeoutError:
            continue
        if not part:
            raise ConnectionError("closed in the middle of the greeting")
        got += part
    return got
