"""TCP sockets set up for bulk transfer over long paths, and exact reads and writes on them."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import ssl
import struct
import termios
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from testbed.sockets import is_host
from testbed.sync.errors import SyncError

#: Unsent chunks that the kernel may hold per connection, within limits in bytes: the next one while one is sent. A more
#: urgent chunk can't overtake them any more; 128 KiB take 100 ms at 10 Mbit/s, at each hop.
UNSENT_CHUNKS = 2
LEAST_UNSENT_BYTES, MOST_UNSENT_BYTES = 32 * 1024, 128 * 1024

#: The longest pause between retransmissions in seconds, unless that would end connections early. Linux doubles the
#: pause up to 120 s, so a link that was down for 40 s would stay unused for up to 40 s more.
RTO_MAX_S = 2.0
RTO_MIN_S = 0.2
RTO_LIMIT_S = 120.0
#: The number of unanswered retransmissions that ends a connection before its own timeout, when the receiver's window
#: was closed as the path went down, or the member's own network stack drops the packets. 15 at 2 s last 25 s.
_RETRIES = Path("/proc/sys/net/ipv4/tcp_retries2")
_USUAL_RETRIES = 15
#: The longest TCP_USER_TIMEOUT in milliseconds that the kernel takes, 24.8 days.
_MOST_USER_TIMEOUT_MS = 2**31 - 1
_ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
#: linux/tcp.h, since 6.15; Python has no name for it yet.
_TCP_RTO_MAX_MS = 44

#: An attempt to connect lasts for this part of the timeout. A path whose handshake takes longer could not carry a round
#: within the timeout, because a round takes two round trips more. A new attempt ends the kernel's pause between
#: retransmissions, which the kernel doubles each time.
ATTEMPT_PART = 0.25
ATTEMPT_MIN_S = 3.0
#: SYN packets that the kernel may send in an attempt: the largest number that it accepts.
_SYN_COUNT = 127

#: How long a peer may take to answer a ReachCheck: Linux sends a SYN at once, and after 1 and 3 s.
REACHED_S = 4.0

#: Failures of this machine to open a connection, which say nothing about the peer.
_LOCAL = frozenset({errno.EADDRNOTAVAIL, errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM})

#: Bytes that a timed receive reads at a time: eleven packets of 1,448 bytes. A large chunk is read in MOST_PIECES
#: pieces, because a piece costs 5 µs.
PIECE_BYTES, MOST_PIECES = 16 * 1024, 16
#: asm-generic/socket.h and linux/tcp.h; Python has no names for them.
_SO_TIMESTAMPNS, _TCP_INQ = 35, 36
_STAMP, _INQ = struct.Struct("@qq"), struct.Struct("@i")
_STAMP_ROOM = socket.CMSG_SPACE(_STAMP.size) + socket.CMSG_SPACE(_INQ.size)

#: The most plaintext bytes in a TLS record.
RECORD_BYTES = 16 * 1024

#: The address that stands for all interfaces of a machine, to which no other machine can connect.
EVERY_INTERFACE = "0.0.0.0"

#: The longest pause between two keep-alive probes, in seconds. Firewalls forget a connection after minutes.
IDLE_S = 60.0

_SIOCGIFADDR = 0x8915
_POLL_S = 0.1


def check_congestion(name: str) -> None:
    """Check that the kernel offers a congestion control.

    Raises:
        SyncError: The kernel does not have `name`, or does not allow it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        except OSError as error:
            raise SyncError(
                f"congestion control {name!r}: {error.strerror}. Allowed here: {_allowed()}. Choose one of them, "
                f"or load another (modprobe tcp_{name}) and add it to net.ipv4.tcp_allowed_congestion_control",
                field="congestion",
                given=name,
            ) from error


def _allowed() -> str:
    try:
        return _ALLOWED.read_text().strip()
    except OSError:
        return "unknown"


def tune(connection: socket.socket, timeout_s: float, congestion: str = "") -> None:
    """Set a data connection's options: a path that is down for less than `timeout_s` does not end it.

    While it is idle, keep-alive probes keep its entry in firewalls, and show the end of a peer's machine. They can end
    it an eighth of `timeout_s` earlier, since the kernel counts from the last packet that came.
    """
    if congestion:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, min(int(timeout_s * 1000), _MOST_USER_TIMEOUT_MS)
    )
    if (idle_s := int(min(IDLE_S, timeout_s / 8))) > 0:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, idle_s)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    with suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, int(rto_max_s(timeout_s, _retries()) * 1000))


def rto_max_s(timeout_s: float, retries: int) -> float:
    """Return the longest pause between retransmissions, in seconds: short, but `retries` of them last `timeout_s`."""
    longest = RTO_MAX_S
    while longest < RTO_LIMIT_S and sum(min(RTO_MIN_S * 2.0**i, longest) for i in range(retries)) < timeout_s:
        longest += 1.0
    return longest


def _retries() -> int:
    try:
        return int(_RETRIES.read_text())
    except OSError:
        return _USUAL_RETRIES


def connect(
    address: tuple[str, int],
    timeout_s: float,
    given_up: threading.Event,
    congestion: str = "",
    greet: Callable[[socket.socket, float], socket.socket] = lambda connection, deadline: connection,
) -> socket.socket:
    """Connect to a peer and greet it. Tries again until `timeout_s` have passed.

    A connection that ends before the greeting does is tried again as well, because a peer closes connections when too
    many unauthenticated ones are open.

    Args:
        address: The peer's address.
        timeout_s: Seconds after which to give up.
        given_up: Set once the caller needs no connection any more.
        congestion: The congestion control; empty for the kernel's default.
        greet: Authenticates the peer by a deadline (monotonic) and returns the connection to use.

    Returns:
        The connection that `greet` returned, with the options of `tune`.

    Raises:
        OSError: The last attempt failed after `timeout_s`, or after `given_up` was set.
        SyncError: `greet` rejected the peer.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            tune(connection, timeout_s, congestion)
            attempt_s = max(ATTEMPT_PART * timeout_s, ATTEMPT_MIN_S)
            attempt(connection, address, min(time.monotonic() + attempt_s, deadline), given_up)
            return greet(connection, deadline)
        except OSError:
            connection.close()
            if time.monotonic() >= deadline or given_up.wait(_POLL_S):
                raise
        except SyncError:
            connection.close()
            raise


def attempt(connection: socket.socket, address: tuple[str, int], deadline: float, given_up: threading.Event) -> None:
    """Connect once, by a deadline (monotonic).

    Raises:
        OSError: The peer refused, the deadline has passed, or the connection is given up.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_SYNCNT, _SYN_COUNT)
    connection.setblocking(False)
    failure = connection.connect_ex(address)
    poll = select.poll()
    poll.register(connection, select.POLLOUT)
    while failure == errno.EINPROGRESS:
        if poll.poll(_POLL_S * 1e3):
            failure = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        elif given_up.is_set() or time.monotonic() >= deadline:
            failure = errno.ETIMEDOUT
    if failure:
        raise OSError(failure, os.strerror(failure))
    connection.setblocking(True)


class ReachCheck:
    """Tries to open a connection to each of some peers. A peer that refuses the connection is reached.

    A peer also counts as reached if this machine can't open a connection at all, since nothing is known of it then.

    The caller calls `step` until it returns True, or until it has waited long enough, and then `close`.

    Args:
        addresses: The peers' addresses.

    Raises:
        OSError: This process may open no more files.

    Attributes:
        unreached: The peers that have not been reached yet, or can't be.
    """

    def __init__(self, addresses: Mapping[str, tuple[str, int]]) -> None:
        self.unreached = set(addresses)
        self._poll = select.poll()
        self._pending: dict[int, tuple[socket.socket, str]] = {}
        try:
            for peer, address in addresses.items():
                self._begin(peer, address)
        except OSError:
            self.close()
            raise

    def step(self, wait_s: float = 0.0) -> bool:
        """Take the answers that came within `wait_s` seconds. Returns whether no more can come."""
        for number, _ in self._poll.poll(wait_s * 1e3) if self._pending else ():
            self._poll.unregister(number)
            self._settle(number, self._pending[number][0].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        return not self._pending

    def close(self) -> None:
        """End all attempts."""
        for connection, _ in self._pending.values():
            connection.close()
        self._pending.clear()

    def _begin(self, peer: str, address: tuple[str, int]) -> None:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        connection.setblocking(False)
        self._pending[connection.fileno()] = connection, peer
        if (failure := connection.connect_ex(address)) == errno.EINPROGRESS:
            self._poll.register(connection, select.POLLOUT)
        else:
            self._settle(connection.fileno(), failure)

    def _settle(self, number: int, failure: int) -> None:
        connection, peer = self._pending.pop(number)
        connection.close()
        if failure in (0, errno.ECONNREFUSED, errno.ECONNRESET) or failure in _LOCAL:
            self.unreached.discard(peer)


def limit_unsent(connection: socket.socket, chunk_bytes: int) -> None:
    """Limit the unsent bytes that the kernel holds to UNSENT_CHUNKS chunks of `chunk_bytes`."""
    limit = min(max(UNSENT_CHUNKS * chunk_bytes, LEAST_UNSENT_BYTES), MOST_UNSENT_BYTES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, limit)


def send_all(connection: socket.socket, head: bytes, payload: memoryview) -> None:
    """Send a head and its payload in as few system calls or TLS records as possible."""
    if isinstance(connection, ssl.SSLSocket):
        room = max(0, RECORD_BYTES - len(head))
        connection.sendall(head + payload[:room])
        connection.sendall(payload[room:])
        return
    sent = connection.sendmsg((head, payload))
    if sent < len(head):
        connection.sendall(head[sent:])
        sent = len(head)
    if sent < len(head) + len(payload):
        connection.sendall(payload[sent - len(head) :])


def receive_or_end(connection: socket.socket, into: memoryview) -> bool:
    """Receive exactly as many bytes as `into` has room for, or none.

    Returns:
        False if the peer closed the connection before the first byte.

    Raises:
        ConnectionError: The peer closed it after the first byte.
    """
    got = 0
    while got < len(into):
        count = _receive_some(connection, into[got:])
        if count == 0:
            if got == 0:
                return False
            raise _closed(got, into)
        got += count
    return True


def _receive_some(connection: socket.socket, into: memoryview) -> int:
    """Fill `into`, under TLS up to the end of a record. Returns the number of bytes."""
    if isinstance(connection, ssl.SSLSocket):
        return connection.recv_into(into)
    return connection.recv_into(into, 0, socket.MSG_WAITALL)


def receive_timed(connection: socket.socket, into: memoryview, note: Callable[[float, int, int], None]) -> None:
    """Fill `into` piece by piece, and say when each piece arrived.

    The kernel's stamps give the times and the waiting bytes if `stamp` asked for them; otherwise the time is that of
    reading, and no bytes count as waiting. Under TLS the time is that of reading too, because records hide the packets
    that brought them.

    Args:
        connection: The connection.
        into: The buffer to fill.
        note: Called for each piece with the arrival time of its last packet (Unix time), the piece's bytes, and the
            number of later bytes that had arrived by then.

    Raises:
        ConnectionError: The peer closed the connection before `into` was full.
    """
    piece = max(PIECE_BYTES, len(into) // MOST_PIECES)
    got = 0
    while got < len(into):
        at_s, count, waiting = _receive_stamped(connection, into[got : got + piece])
        if count == 0:
            raise _closed(got, into)
        got += count
        note(at_s, count, waiting)


def _receive_stamped(connection: socket.socket, into: memoryview) -> tuple[float, int, int]:
    if isinstance(connection, ssl.SSLSocket):
        count = connection.recv_into(into)
        (unread,) = _INQ.unpack(fcntl.ioctl(connection, termios.FIONREAD, bytes(_INQ.size)))
        return time.time(), count, connection.pending() + unread
    count, ancillary, _, _ = connection.recvmsg_into((into,), _STAMP_ROOM, socket.MSG_WAITALL)
    at_s, waiting = _stamped(ancillary)
    return at_s, count, waiting


def acknowledge_at_once(connection: socket.socket) -> None:
    """Turn off delayed acknowledgements on a connection that only receives from now on.

    This side has sent a greeting, so the kernel treats the connection as a dialogue and delays acknowledgements for
    40 ms. The sender measures the path by their times.
    """
    with suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def keep_alive(connection: socket.socket) -> None:
    """Send a keep-alive probe each second while the connection is idle.

    The kernel of a peer that has closed repeats its FIN a few times and then forgets the connection. If the path was
    down at that time, only a probe brings an answer.
    """
    with suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def stamp(connection: socket.socket) -> None:
    """Have the kernel report the arrival time of received bytes and the number of bytes that wait, if it can."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_INQ, 1)


def receive_datagram(receiving: socket.socket, most_bytes: int) -> tuple[float, bytes]:
    """Receive one datagram. Return its arrival time and its bytes.

    Returns:
        The arrival time (Unix time), and the datagram's bytes, of which those after `most_bytes` + 1 are lost.
    """
    datagram, ancillary, _, _ = receiving.recvmsg(most_bytes + 1, _STAMP_ROOM)
    at_s, _ = _stamped(ancillary)
    return at_s, datagram


def _stamped(ancillary: list[tuple[int, int, bytes]]) -> tuple[float, int]:
    at_s, waiting = 0.0, 0
    for level, kind, data in ancillary:
        if (level, kind, len(data)) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS, _STAMP.size):
            seconds, nanoseconds = _STAMP.unpack(data)
            at_s = float(seconds + nanoseconds * 1e-9)
        elif (level, kind, len(data)) == (socket.IPPROTO_TCP, _TCP_INQ, _INQ.size):
            (waiting,) = _INQ.unpack(data)
    return at_s or time.time(), waiting


def receive(connection: socket.socket, into: memoryview) -> None:
    """Receive exactly as many bytes as `into` has room for.

    Raises:
        ConnectionError: The peer closed the connection before `into` was full.
    """
    if not receive_or_end(connection, into):
        raise _closed(0, into)


def _closed(got: int, into: memoryview) -> ConnectionError:
    return ConnectionError(f"the peer closed the connection after {got} of {len(into)} bytes")


def close_now(connection: socket.socket) -> None:
    """Close a connection at once, and wake a thread that is blocked on it."""
    shut_down(connection)
    connection.close()


def shut_down(connection: socket.socket) -> None:
    """End a connection that another thread uses and will close. It wakes that thread.

    `SSLSocket.shutdown` would remove the TLS state that the other thread still uses.
    """
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def listen(address: str, timeout_s: float) -> socket.socket:
    """Listen on a free port of `address`.

    Args:
        address: An IPv4 address, which may appear during the wait. Empty for the first address of an interface other
            than the loopback.
        timeout_s: The longest wait for the address in seconds.

    Raises:
        SyncError: No interface has the address after `timeout_s`, the kernel refuses it, or no peer can connect to it.
    """
    if address == EVERY_INTERFACE or not is_host(address):
        raise SyncError(
            f"can't listen on {address!r}: no peer can connect to this address. Write the one at which peers "
            "reach this member, or leave it empty for the first address that is not the loopback's",
            rule="address",
            given=address,
        )
    deadline = time.monotonic() + timeout_s
    while True:
        host = address or first_address()
        if host is not None:
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                listener.bind((host, 0))
                listener.listen(128)
                return listener
            except OSError as error:
                listener.close()
                if error.errno != errno.EADDRNOTAVAIL:
                    raise SyncError(f"can't listen on {host}: {error}") from error
        if time.monotonic() >= deadline:
            raise SyncError(
                f"no interface got the address {address or '(any)'} within {timeout_s:.0f} s"
                + ("; behind NAT name the interface's own address, and join the sites by a VPN" if address else ""),
                rule="address",
                given=address,
            )
        time.sleep(_POLL_S)


def first_address() -> str | None:
    """Return the first IPv4 address of an interface other than the loopback; None if there is no such address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            if name == "lo":
                continue
            with suppress(OSError):
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                return socket.inet_ntoa(answer[20:24])
    return None
