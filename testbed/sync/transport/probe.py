"""Probes: trains of packets without content that measure the rate of a path that no plan uses.

    sent      |||||||||||||         |||||||||||||        trains, faster than the path can carry them
    arrives   | | | | | | |   |     | | | | | |          the slowest link spreads the packets; some may be lost

A probe consists of UDP datagrams, one packet each. A datagram's arrival is known even if earlier ones are missing, and
no window must grow first. Probes over TCP took six round trips, and a third of those over links that had fallen or come
back measured nothing (`fades-7` of `benchmarks.replanning`). A datagram names its sender and is signed with the key
that both members share. A peer receives probes on the port number on which it listens for TCP. Where a firewall drops
them, the paths that no plan uses stay unknown. Datagrams are not encrypted: an observer learns which member probes
which. A train's number is the time at which it began, and a receiver ignores a train that is not newer than the last,
so a recorded train can't be sent again. That time never goes back while a process lasts, however its clock is set.

A sender that gets no CPU for a while leaves a gap like that of a slow link. So each packet states how long after its
train's first packet it left. A train that arrived as fast as it left shows that the path carries at least that rate.
"""

from __future__ import annotations

import hmac
import logging
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from testbed.protocol import Probe, Train
from testbed.sync.errors import SyncError
from testbed.sync.executor import start
from testbed.sync.transport import sockets
from testbed.sync.transport.arrivals import Arrivals
from testbed.sync.transport.handshake import CLOSE_S, TransportSettings

#: The bytes of a datagram. With the headers of UDP and IP it fits through tunnels, too.
PACKET_BYTES: Final = 1400
#: The bytes that a packet counts as. Links are measured in TCP payload, of which a full frame of 1,514 bytes on the
#: wire has 1,448.
COUNTED_BYTES: Final = (PACKET_BYTES + 28 + 14) * 1448 / 1514

#: Seconds between two trains.
PAUSE_S: Final = 0.08
#: The number of packets in a train. Of fewer packets, the host's scheduling weighs as much as the path.
LEAST_PACKETS: Final = 8
MOST_PACKETS: Final = 1024
#: The highest pace in bytes/s, above that of any path.
MOST_PACE: Final = 2**40

#: Packets that are due within this many seconds leave at once: with a wait for each packet, trains on a busy host left
#: at a tenth of their pace, and a link that had risen from 8 to 24 Mbit/s was noticed after 3.5 s.
BURST_S: Final = 0.001

#: A probe of one train looks whether a link of the plan still has its rate. It waits for up to WAIT_S seconds until the
#: member's frames to the peer have arrived, asked each POLL_S: so it holds no round up, and has the path for itself.
#: Without a wait the median round of `constant-5` (seed 112) took 0.88 s, and 0.85 s without probes.
WAIT_S: Final = 0.5
POLL_S: Final = 0.01

#: A train ends when no packet of it came for this many seconds, the gap between its packets at 38 kbit/s.
SILENCE_S: Final = 0.3

#: The longest wait in seconds until the interface accepts a packet.
BLOCKED_S: Final = 0.5

_MAGIC: Final = b"tbp2"
#: The magic, the fields of _Packet without the name, and the name's length. The name and the proof follow.
_HEAD: Final = struct.Struct("<4sQHHQB")
_PROOF_BYTES: Final = 16


#: Unix time minus the monotonic clock, in nanoseconds, when this process began.
_BEGAN_NS: Final = time.time_ns() - time.monotonic_ns()

log = logging.getLogger(__name__)


def paced(probe: Probe) -> tuple[int, float]:
    """Return the number of packets in each of a probe's trains, and the rate in bytes/s at which they leave."""
    packets = min(max(int(probe.bytes / COUNTED_BYTES / probe.trains), LEAST_PACKETS), MOST_PACKETS)
    return packets, min(max(probe.bytes, 1) / max(probe.seconds, 1e-6), MOST_PACE)


class ProbeSender:
    """Sends a member's probes. Any thread may call.

    Args:
        roster: The addresses of all members.
        sends: Returns whether frames of this member to a peer wait or are on their way.
    """

    def __init__(
        self,
        settings: TransportSettings,
        roster: Mapping[str, tuple[str, int]],
        sends: Callable[[str], bool | None] = lambda peer: False,
    ) -> None:
        self._settings = settings
        self._roster = roster
        self._sends = sends
        self._guard = threading.Lock()
        self._probes: queue.SimpleQueue[Probe | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def probe(self, probe: Probe) -> None:
        """Queue a probe. Returns at once. After `close` no probe is sent."""
        with self._guard:
            if self._closed.is_set():
                return
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="probes", daemon=True)
                try:
                    start(thread)
                except SyncError as error:
                    log.warning("%s can't send a probe to %s: %s", self._settings.member, probe.peer, error)
                    return
                self._thread = thread
        self._probes.put(probe)

    def close(self) -> None:
        """Stop sending at once, even inside a probe."""
        with self._guard:
            self._closed.set()
        self._probes.put(None)
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        # The probe that is due at each peer, and when it leaves at the latest (monotonic).
        waiting: dict[str, tuple[Probe, float]] = {}
        while not self._closed.is_set():
            with suppress(queue.Empty):
                if (probe := self._probes.get(timeout=POLL_S if waiting else None)) is None:
                    return
                latest_s = time.monotonic() + (WAIT_S if probe.trains == 1 else 0.0)
                if probe.trains > 1 or probe.peer not in waiting:
                    waiting[probe.peer] = probe, latest_s
            for peer, (probe, latest_s) in list(waiting.items()):
                if time.monotonic() >= latest_s or not self._sends(peer):
                    del waiting[peer]
                    with suppress(OSError, KeyError):  # without a result the controller probes again
                        self._send(probe)

    def _send(self, probe: Probe) -> None:
        packets, pace = paced(probe)
        key = self._settings.keys[probe.peer]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
            sending.settimeout(BLOCKED_S)
            sending.connect(self._roster[probe.peer])
            for number in range(probe.trains):
                if number and self._closed.wait(PAUSE_S):
                    return
                self._send_train(sending, key, packets, COUNTED_BYTES / pace)

    def _send_train(self, sending: socket.socket, key: bytes, packets: int, apart_s: float) -> None:
        train, began_s = _BEGAN_NS + time.monotonic_ns(), time.monotonic()
        for number in range(packets):
            early_s = began_s + number * apart_s - time.monotonic()
            if early_s > BURST_S and self._closed.wait(early_s):
                return
            left_us = int(1e6 * (time.monotonic() - began_s))
            sending.send(self._packet(key, _Packet(self._settings.member, train, packets, number, left_us)))

    def _packet(self, key: bytes, packet: _Packet) -> bytes:
        name = packet.member.encode()
        head = _HEAD.pack(_MAGIC, *packet[1:], len(name)) + name
        return (head + _proof(key, head)).ljust(PACKET_BYTES, b"\0")


def _proof(key: bytes, head: bytes) -> bytes:
    return hmac.digest(key, b"probe\0" + head, "sha256")[:_PROOF_BYTES]


class _Packet(NamedTuple):
    member: str
    #: When the train began, in nanoseconds since 1970 by the sender's clock as it was when its process began.
    train: int
    #: The number of packets in the train, and of this packet.
    packets: int
    number: int
    #: Microseconds from the train's first packet to this one, at the sender.
    left_us: int


class ProbeTrain:
    """The received packets of a train."""

    def __init__(self, number: int, left_us: int, at_s: float) -> None:
        self._first = self._last = number, left_us, at_s
        self._received = 1

    def add(self, number: int, left_us: int, at_s: float) -> None:
        """Add a packet, unless it or a later one was added before.

        Args:
            number: The packet's number in the train.
            left_us: Microseconds from the train's first packet to this one, at the sender.
            at_s: The arrival time (Unix time).
        """
        if number > self._last[0]:
            self._last = number, left_us, at_s
            self._received += 1

    def is_over(self, now_s: float) -> bool:
        """Return whether no packet has come for SILENCE_S."""
        return now_s - self._last[2] >= SILENCE_S

    @property
    def train(self) -> Train | None:
        """The measurement, or None if fewer than LEAST_PACKETS came."""
        (number, left_us, first_s), (last, last_left_us, last_s) = self._first, self._last
        seconds = round(last_s - first_s, 6)
        if self._received < LEAST_PACKETS or seconds <= 0:
            return None
        sending_s = (last_left_us - left_us) / 1e6
        pace = min(int((last - number) * COUNTED_BYTES / sending_s), MOST_PACE) if sending_s > 0 else 0
        return Train(round(first_s, 5), seconds, int((self._received - 1) * COUNTED_BYTES), pace)


class ProbeListener:
    """Measures the probes from peers and adds them to the member's arrivals.

    It receives probes at the address on which `accepting` listens. If another program uses the UDP port, it logs a
    warning and receives none.
    """

    def __init__(self, accepting: socket.socket, settings: TransportSettings, arrivals: Arrivals) -> None:
        self._settings = settings
        self._arrivals = arrivals
        #: The current train of each member.
        self._current: dict[str, ProbeTrain] = {}
        #: The number of each member's newest train.
        self._newest: dict[str, int] = {}
        self._closed = False
        self._socket = socket.socket(accepting.family, socket.SOCK_DGRAM)
        self._thread: threading.Thread | None = None
        try:
            self._socket.bind(accepting.getsockname())
            sockets.stamp(self._socket)
            thread = threading.Thread(target=self._run, name="probe listener", daemon=True)
            start(thread)
        except (OSError, SyncError) as error:
            log.warning(
                "%s can't receive probes, so the paths to it that no plan uses stay unknown: %s", settings.member, error
            )
        else:
            self._thread = thread

    def close(self) -> None:
        """Stop receiving probes from peers."""
        self._closed = True
        sockets.shut_down(self._socket)  # wakes the thread
        if self._thread is not None:
            self._thread.join(CLOSE_S)
        self._socket.close()

    def _run(self) -> None:
        while not self._closed:
            self._socket.settimeout(SILENCE_S if self._current else None)
            try:
                at_s, datagram = sockets.receive_datagram(self._socket, PACKET_BYTES)
            except TimeoutError:
                now_s = time.time()
            except OSError:  # closed, or an ICMP error of an earlier datagram
                continue
            else:
                if (packet := self._unpack(datagram)) is not None:
                    self._take(packet, at_s)
                now_s = at_s  # not the clock: if this process stood still, later packets wait that came in time
            for member in [member for member, train in self._current.items() if train.is_over(now_s)]:
                self._end(member)

    def _unpack(self, datagram: bytes) -> _Packet | None:
        """Return the packet in a datagram, or None if no member signed it."""
        if len(datagram) != PACKET_BYTES:
            return None
        magic, train, packets, number, left_us, length = _HEAD.unpack_from(datagram)
        head, rest = datagram[: _HEAD.size + length], datagram[_HEAD.size + length :]
        member = head[_HEAD.size :].decode(errors="replace")
        key = self._settings.keys.get(member)
        if magic != _MAGIC or key is None or not hmac.compare_digest(rest[:_PROOF_BYTES], _proof(key, head)):
            return None
        return _Packet(member, train, packets, number, left_us)

    def _take(self, packet: _Packet, at_s: float) -> None:
        newest, current = self._newest.get(packet.member, -1), self._current.get(packet.member)
        if packet.train > newest:
            self._end(packet.member)
            self._newest[packet.member] = packet.train
            self._current[packet.member] = ProbeTrain(packet.number, packet.left_us, at_s)
        elif packet.train == newest and current is not None:
            current.add(packet.number, packet.left_us, at_s)
        else:  # late, or sent again by somebody else
            return
        if packet.number == packet.packets - 1:
            self._end(packet.member)

    def _end(self, member: str) -> None:
        current = self._current.pop(member, None)
        if current is not None and (train := current.train) is not None:
            self._arrivals.add(member, train)
