"""Mutual TLS between machines: both ends of a connection show a certificate of one authority, with their name in it.

A folder holds what one machine has of it (`testbed certificates` makes them):

    authority.pem     the authority's certificate, by which those of others are known; the same for all
    certificate.pem   this one's own
    key.pem           the key of that; nobody else may read it

Names are compared as they are, unlike those of hosts: `Paris` is not `paris`.
"""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

AUTHORITY, CERTIFICATE, KEY = "authority.pem", "certificate.pem", "key.pem"

#: The name in the controller's certificate, which is no member's.
CONTROLLER = "controller"


class TlsError(ValueError):
    """A folder that can't be used; the text says which file, and what to do about it."""


class Tls:
    """What is in a folder, ready for connections. TlsError when that is not what it should be."""

    def __init__(self, folder: Path) -> None:
        key = folder / KEY
        try:
            if mode := key.stat().st_mode & 0o077:
                raise TlsError(f"{key}: others may read this key (mode {mode:o} of them): chmod 600 {key}")
            self.server = _context(ssl.PROTOCOL_TLS_SERVER, folder)
            self._client = _context(ssl.PROTOCOL_TLS_CLIENT, folder)
            # They are for who comes again; a sender never reads, and what lies unread as it closes resets a connection.
            self.server.num_tickets = 0
        except OSError as error:  # that of ssl among them
            raise TlsError(
                f"{folder}: {error}. A folder for TLS holds {AUTHORITY}, {CERTIFICATE} and {KEY}, as "
                "`testbed certificates` makes them"
            ) from error

    def accepted(self, connection: socket.socket) -> ssl.SSLSocket:
        """A connection that came in; its handshake is still to be done."""
        return self.server.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    @property
    def client(self) -> ssl.SSLContext:
        """For connections that are made from here."""
        return self._client

    def opened(self, connection: socket.socket) -> ssl.SSLSocket:
        """A connection that was made from here; its handshake is still to be done."""
        return self._client.wrap_socket(connection, do_handshake_on_connect=False)


def shown(connection: ssl.SSLSocket | ssl.SSLObject) -> str:
    """The name in the certificate that the other end has shown; empty when there is not one."""
    names = [str(entry[1]) for entry in (connection.getpeercert() or {}).get("subjectAltName", ())]
    return names[0] if len(names) == 1 else ""


def _context(protocol: int, folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the name is a member's, and compared by `shown`
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(folder / AUTHORITY)
    context.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    return context
