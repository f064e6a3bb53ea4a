"""Sockets between processes: addresses of Unix sockets, peers that vanish, and mutual TLS between machines.

Under TLS both ends of a connection show a certificate of one authority, with their name in it. A folder holds what one
machine needs for it (`testbed certificates` makes the folders):

    authority.pem     the authority's certificate, by which peers' certificates are checked; the same for all
    certificate.pem   the machine's own certificate
    key.pem           the key of that certificate; nobody else may read it

Names are compared letter by letter, unlike host names: `Paris` is not `paris`.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

AUTHORITY, CERTIFICATE, KEY = "authority.pem", "certificate.pem", "key.pem"

#: The name in the controller's certificate; no member may have it.
CONTROLLER = "controller"

#: Keep-alive on connections of a member and the controller: the seconds until an idle connection is probed, the seconds
#: between probes, and the unanswered probes that end the connection. A member's machine may vanish while the member
#: waits for training to begin; without probes its name would stay taken. These probes notice that in two minutes, the
#: kernel's own in two hours.
ALIVE_IDLE_S, ALIVE_EVERY_S, ALIVE_PROBES = 60, 15, 4
#: Seconds for which the other end may be silent, or leave what was sent to it unread.
SILENT_S = ALIVE_IDLE_S + ALIVE_EVERY_S * ALIVE_PROBES


@contextmanager
def unix_address(path: Path) -> Iterator[str]:
    """Yield a short address of the Unix socket at `path`, which this process may use within the context.

    The kernel takes 107 bytes; a path with the names of a run and of one of its members may be longer.

    Raises:
        OSError: The socket's folder does not exist.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def is_host(text: str) -> bool:
    """Return whether a text can be the name or the address of a host.

    For another text, such as `a..b` or `ä..b`, the functions of sockets raise UnicodeError or TypeError, not OSError.
    """
    try:
        text.encode("idna")
    except UnicodeError:
        return False
    return "\0" not in text


def host_and_port(text: str, least: int = 1) -> tuple[str, int] | None:
    """Return the host and the port of a text `host:port`, or None for another text. `least` is the lowest port."""
    host, _, digits = text.rpartition(":")
    host, port = host.strip("[]"), port_of(digits)
    return None if not host.strip() or not is_host(host) or port is None or port < least else (host, port)


def port_of(text: str) -> int | None:
    """Return the port, from 0 on, that a text of at most five digits names; None for another text."""
    # The length comes first: `int` raises ValueError for over 4,300 digits.
    return int(text) if len(text) <= 5 and text.isascii() and text.isdigit() and int(text) < 2**16 else None


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel end a TCP connection whose other end has vanished, or reads nothing, for SILENT_S.

    A connection with unread or unacknowledged bytes is not probed. Without a timeout the kernel repeats them for a
    quarter of an hour, and waits for ever for an end that does not read. A Unix socket's other end can't vanish
    unnoticed.
    """
    if connection.family == socket.AF_UNIX:
        return
    with suppress(OSError):  # the connection has ended already
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, ALIVE_IDLE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, ALIVE_EVERY_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, ALIVE_PROBES)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * SILENT_S)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


class TlsError(ValueError):
    """A folder for TLS that can't be used; the text names the file, and says what to do."""


class Tls:
    """The TLS settings of connections in both directions, made of a folder's authority, certificate and key.

    Raises:
        TlsError: The folder lacks a file, a file is wrong, or others may read the key.
    """

    def __init__(self, folder: Path) -> None:
        key = folder / KEY
        try:
            if mode := key.stat().st_mode & 0o077:
                raise TlsError(f"{key}: others may read this key (mode {mode:o}); run: chmod 600 {key}")
            #: The context of incoming connections.
            self.server = _context(ssl.PROTOCOL_TLS_SERVER, folder)
            #: The context of outgoing connections.
            self.client = _context(ssl.PROTOCOL_TLS_CLIENT, folder)
            # Session tickets are for peers that reconnect. A sender never reads them, and unread bytes at its close
            # would reset the connection.
            self.server.num_tickets = 0
        except OSError as error:  # also ssl's errors
            files = f"{AUTHORITY}, {CERTIFICATE} and {KEY}"
            raise TlsError(
                f"{folder}: {error}. A folder for TLS holds {files}; `testbed certificates` makes them"
            ) from error

    def accepted(self, connection: socket.socket) -> ssl.SSLSocket:
        """Wrap an incoming connection in TLS and return it; the caller does the handshake."""
        return self.server.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    def opened(self, connection: socket.socket) -> ssl.SSLSocket:
        """Wrap an outgoing connection in TLS and return it; the caller does the handshake."""
        return self.client.wrap_socket(connection, do_handshake_on_connect=False)


def peer_name(connection: ssl.SSLSocket | ssl.SSLObject) -> str:
    """Return the name in the other end's certificate; empty where the certificate does not have exactly one."""
    names = [str(entry[1]) for entry in (connection.getpeercert() or {}).get("subjectAltName", ())]
    return names[0] if len(names) == 1 else ""


def _context(protocol: int, folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the name is a member's, which `peer_name` returns
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(folder / AUTHORITY)
    context.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    return context
