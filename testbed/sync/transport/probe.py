"""Probes: packets that mean nothing, sent to find out what a path carries that no plan uses.

    sent      |||||||||||||         |||||||||||||        trains, faster than the path passes them on
    arrives   | | | | | | |   |     | | | | | |          its slowest link spreads them out; some may be lost

They are datagrams, a packet each: when one arrived is known whether those before it did or not, and there is no window
that must grow first. Probes over TCP took six round trips, and of those over links that had fallen or come back a third
brought nothing (`fades-7` of `benchmarks.replanning`). A datagram names its member and is signed with the key that the
two have in common, and a peer hears them at the port that it listens at; where a firewall drops them, what no plan uses
is not known. They are not encrypted: who sees them learns who probes whom. Trains are named by when they began, and one
that is not newer than the last is passed over, so nobody else can send them again.

A sender that gets no processor for a while leaves a gap that looks like a slow link's. So each packet says how long
after the first of its train it left, and a train how fast it left: one that came as fast shows what the path carries at
least.
"""

from __future__ import annotations

import hmac
import logging
import queue
import socket
import struct
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from testbed.protocol import PROBE_TRAINS, Probe, Train
from testbed.sync.errors import SyncError
from testbed.sync.executor import start
from testbed.sync.transport import sockets
from testbed.sync.transport.arrivals import Arrivals
from testbed.sync.transport.settings import CLOSE_S, TransportSettings

#: Of a datagram. With the heads of UDP and IP it goes through tunnels, too.
PACKET_BYTES: Final = 1400
#: As a frame on the wire, counted as TCP's payload, of which a full frame of 1,514 bytes has 1,448: links are measured
#: in that.
COUNTED_BYTES: Final = (PACKET_BYTES + 28 + 14) * 1448 / 1514

#: Between two trains.
PAUSE_S: Final = 0.08
#: Packets of a train. Fewer that came say too little: what the host does meanwhile weighs as much.
LEAST_PACKETS: Final = 8
MOST_PACKETS: Final = 1024
#: Bytes a second. More is no path's.
MOST_PACE: Final = 2**40

#: A train is over when nothing of it came for so long. Over 38 kbit/s its packets are so far apart.
SILENCE_S: Final = 0.3

#: Nobody waits longer for an interface to take a packet.
BLOCKED_S: Final = 0.5

_MAGIC: Final = b"tbp2"
#: The train, by when it began (ns of the sender's clock), its packets, which one this is, and how many microseconds
#: after the first one it left; the member's name follows, and the proof.
_HEAD: Final = struct.Struct("<4sQHHQB")
_PROOF_BYTES: Final = 16


log = logging.getLogger(__name__)


def paced(probe: Probe) -> tuple[int, float]:
    """The packets of each of a probe's trains, and bytes a second at which they leave."""
    packets = min(max(int(probe.bytes / COUNTED_BYTES / PROBE_TRAINS), LEAST_PACKETS), MOST_PACKETS)
    return packets, min(max(probe.bytes, 1) / max(probe.seconds, 1e-6), MOST_PACE)


class ProbeSender:
    """Sends a member's probes, one after the other. Any thread may call."""

    def __init__(self, settings: TransportSettings, roster: Mapping[str, tuple[str, int]]) -> None:
        self._settings = settings
        self._roster = roster
        self._guard = threading.Lock()
        self._probes: queue.SimpleQueue[Probe | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def probe(self, probe: Probe) -> None:
        """Send a probe; returns at once. Nothing is sent any more once this is closed."""
        with self._guard:
            if self._closed.is_set():
                return
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="probes", daemon=True)
                try:
                    start(thread)
                except SyncError as error:
                    log.warning("%s sends no probe: %s", self._settings.member, error)
                    return
                self._thread = thread
        self._probes.put(probe)

    def close(self) -> None:
        """End, in the midst of a probe too."""
        with self._guard:
            self._closed.set()
        self._probes.put(None)
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (probe := self._probes.get()) is not None and not self._closed.is_set():
            with suppress(OSError, KeyError):  # a probe that can't be sent has found out enough
                self._send(probe)

    def _send(self, probe: Probe) -> None:
        packets, pace = paced(probe)
        key = self._settings.keys[probe.peer]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
            sending.settimeout(BLOCKED_S)
            sending.connect(self._roster[probe.peer])
            for number in range(PROBE_TRAINS):
                if number and self._closed.wait(PAUSE_S):
                    return
                self._send_train(sending, key, packets, COUNTED_BYTES / pace)

    def _send_train(self, sending: socket.socket, key: bytes, packets: int, apart_s: float) -> None:
        train, began_s = time.time_ns(), time.monotonic()
        for number in range(packets):
            early_s = began_s + number * apart_s - time.monotonic()
            if early_s > 0 and self._closed.wait(early_s):
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
    train: int
    packets: int
    number: int
    left_us: int


class ProbeTrain:
    """Packets of a train that came: by number, how long after the train's first one they left, and when they came (Unix
    time)."""

    def __init__(self, number: int, left_us: int, at_s: float) -> None:
        self._first = self._last = number, left_us, at_s
        self._came = 1

    def add(self, number: int, left_us: int, at_s: float) -> None:
        """One more came. It is not counted if one after it did before, or itself."""
        if number > self._last[0]:
            self._last = number, left_us, at_s
            self._came += 1

    def is_over(self, now_s: float) -> bool:
        """Whether nothing has come for long."""
        return now_s - self._last[2] >= SILENCE_S

    @property
    def train(self) -> Train | None:
        """What they say of the path; None where too few came."""
        (number, left_us, first_s), (last, last_left_us, last_s) = self._first, self._last
        seconds = round(last_s - first_s, 6)
        if self._came < LEAST_PACKETS or seconds <= 0:
            return None
        sending_s = (last_left_us - left_us) / 1e6
        pace = min(int((last - number) * COUNTED_BYTES / sending_s), MOST_PACE) if sending_s > 0 else 0
        return Train(round(first_s, 5), seconds, int((self._came - 1) * COUNTED_BYTES), pace)


class ProbeListener:
    """Times the probes that come in from peers: they are part of the member's arrivals.

    It hears them at the address that `accepting` listens at; where another program does, it says so and hears none.
    """

    def __init__(self, accepting: socket.socket, settings: TransportSettings, arrivals: Arrivals) -> None:
        self._settings = settings
        self._arrivals = arrivals
        # By member: the train that is on, and the name of the newest that was.
        self._coming: dict[str, ProbeTrain] = {}
        self._newest: dict[str, int] = {}
        self._closed = False
        self._socket = socket.socket(accepting.family, socket.SOCK_DGRAM)
        self._thread: threading.Thread | None = None
        try:
            self._socket.bind(accepting.getsockname())
            sockets.stamp(self._socket)
            thread = threading.Thread(target=self._run, name="hears probes", daemon=True)
            start(thread)
        except (OSError, SyncError) as error:
            log.warning(
                "%s hears no probes, so paths to it that no plan uses are not known: %s", settings.member, error
            )
        else:
            self._thread = thread

    def close(self) -> None:
        """Hear nothing any more."""
        self._closed = True
        sockets.hang_up(self._socket)  # wakes the thread
        if self._thread is not None:
            self._thread.join(CLOSE_S)
        self._socket.close()

    def _run(self) -> None:
        while not self._closed:
            self._socket.settimeout(SILENCE_S if self._coming else None)
            try:
                at_s, datagram = sockets.receive_datagram(self._socket, PACKET_BYTES)
            except TimeoutError:
                now_s = time.time()
            except OSError:  # of an earlier one that could not be delivered, or it is closed
                continue
            else:
                if (packet := self._known(datagram)) is not None:
                    self._take(packet, at_s)
                now_s = at_s  # where this process stood still, more of the train has come in time meanwhile
            for member in [member for member, coming in self._coming.items() if coming.is_over(now_s)]:
                self._end(member)

    def _known(self, datagram: bytes) -> _Packet | None:
        """What a datagram says, if a member sent it."""
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
        newest, coming = self._newest.get(packet.member, -1), self._coming.get(packet.member)
        if packet.train > newest:
            self._end(packet.member)
            self._newest[packet.member] = packet.train
            self._coming[packet.member] = ProbeTrain(packet.number, packet.left_us, at_s)
        elif packet.train == newest and coming is not None:
            coming.add(packet.number, packet.left_us, at_s)
        else:  # of one that is over, or somebody sends it again
            return
        if packet.number == packet.packets - 1:
            self._end(packet.member)

    def _end(self, member: str) -> None:
        coming = self._coming.pop(member, None)
        if coming is not None and (train := coming.train) is not None:
            self._arrivals.add(member, train)
