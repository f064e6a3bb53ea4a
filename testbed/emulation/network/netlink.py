"""A routing-netlink socket in another network namespace.

Requests are built as bytes and sent in batches, with one system call each way: 30 µs for a request on which a general
netlink library spends 0.5 to 0.9 ms of interpreter time, after it has forked a child to open its socket in a namespace
(7 ms). This makes it possible to change each of 26 links in every tick of 100 ms, and to build a network quickly.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from testbed.emulation.network.namespace import inside
from testbed.emulation.process import ProcessIdentity

CREATE, EXCLUSIVE, REPLACE = 0x400, 0x200, 0x100

#: The kernel answers while it reads, and a socket's buffer (208 KiB) holds about 270 unread answers.
AT_ONCE = 128

_REQUEST, _ACKNOWLEDGE, _DUMP = 0x1, 0x4, 0x300
_ERROR, _DONE = 2, 3
_ROUTE = 0
_GET_LINK = 18
_NAME, _EXTENT = 3, 29
_WITHOUT_STATISTICS = 8
_HEADER = struct.Struct("=IHHII")
_INTERFACE = struct.Struct("=BxHiII")


@dataclass(frozen=True, slots=True)
class NetlinkRequest:
    """One change: its message type, its flags beside the usual ones, and its body."""

    message: int
    flags: int
    body: bytes


def attribute(kind: int, data: bytes) -> bytes:
    """Encode one attribute of a message."""
    return struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


def attributes(data: bytes) -> dict[int, bytes]:
    """Decode attributes into a mapping by kind."""
    found, at = {}, 0
    while at + 4 <= len(data):
        size, kind = struct.unpack_from("=HH", data, at)
        found[kind & 0x3FFF] = data[at + 4 : at + size]
        at += max(size + -size % 4, 4)
    return found


class Netlink:
    """A socket to the kernel's devices and routing tables in one namespace. Any thread may use it.

    The namespace is that of a file, or the one that a process holds. An OSError carries the kernel's refusal.
    """

    def __init__(self, netns: Path | ProcessIdentity) -> None:
        self._socket = inside(netns, _routing_socket)
        self._sequence = count(1)
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the socket, which would keep the namespace alive."""
        self._socket.close()

    def apply(self, *requests: NetlinkRequest) -> None:
        """Send requests in batches and read an answer to each; then raise the first refusal, if there is one."""
        for begin in range(0, len(requests), AT_ONCE):
            self._ask(requests[begin : begin + AT_ONCE], _ACKNOWLEDGE)

    def dump(self, message: int, body: bytes) -> list[bytes]:
        """Return the bodies of all entries that a request asks for."""
        return self._ask([NetlinkRequest(message, 0, body)], _DUMP)

    def index(self, interface: str) -> int:
        """Return the kernel's index of an interface. Raises OSError (ENODEV) if there is none of this name."""
        body = _INTERFACE.pack(0, 0, 0, 0, 0) + attribute(_NAME, interface.encode() + b"\0")
        body += attribute(_EXTENT, struct.pack("=I", _WITHOUT_STATISTICS))
        (answer,) = self._ask([NetlinkRequest(_GET_LINK, 0, body)], _ACKNOWLEDGE)
        return int(_INTERFACE.unpack_from(answer)[2])

    def _ask(self, requests: Sequence[NetlinkRequest], flags: int) -> list[bytes]:
        """Send all requests at once, read until each is done or refused, and return the entries received."""
        found, refusal = [], 0
        with self._lock:
            waiting = self._send(requests, flags)
            while waiting:
                for kind, sequence, body in self._receive():
                    if sequence not in waiting:
                        continue
                    if kind not in (_ERROR, _DONE):
                        found.append(body)
                        continue
                    waiting.remove(sequence)
                    if kind == _ERROR:  # its code is 0 on success
                        refusal = refusal or -struct.unpack_from("=i", body)[0]
        if refusal:
            raise OSError(refusal, os.strerror(refusal))
        return found

    def _send(self, requests: Sequence[NetlinkRequest], flags: int) -> set[int]:
        messages, numbers = [], set()
        for request in requests:
            number = next(self._sequence) & 0xFFFFFFFF
            numbers.add(number)
            size = _HEADER.size + len(request.body)
            header = _HEADER.pack(size, request.message, _REQUEST | flags | request.flags, number, 0)
            messages.append(header + request.body + b"\0" * (-size % 4))
        self._socket.send(b"".join(messages))
        return numbers

    def _receive(self) -> list[tuple[int, int, bytes]]:
        """Return type, sequence number and body of the messages in the next datagram."""
        data, at, messages = self._socket.recv(1 << 17), 0, []
        while at + _HEADER.size <= len(data):
            size, kind, _, sequence, _ = _HEADER.unpack_from(data, at)
            messages.append((kind, sequence, data[at + _HEADER.size : at + size]))
            at += size + -size % 4
        return messages


def _routing_socket() -> socket.socket:
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _ROUTE)
    opened.bind((0, 0))
    return opened
