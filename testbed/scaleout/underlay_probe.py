"""Probes between hosts, over their own network and beside whatever runs: small datagrams that are echoed at once.

    probe    token (16), number (8), sent (8)                                     on the sender's monotonic clock
    answer   the same, received (8), answered (8), wall − monotonic (8)           on the answering host's

Who has the network's token is answered, nobody else: an echo to whoever asks is one that attackers can play with. An
answer tells round trip, loss, and the other host's clock (see `clock`).
"""

from __future__ import annotations

import contextlib
import hmac
import select
import socket
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from testbed.emulation.network.namespace import inside
from testbed.emulation.network.share import OWN
from testbed.scaleout.clock import ClockSample

#: The UDP port of the echo, beside that of the tunnels.
PROBE_PORT = 14790
#: So often each host is probed while a network is up: 20 datagrams a second, 17 kbit/s.
PERIOD_S = 0.05
#: An answer that takes longer has come too late to be one.
LATEST_S = 2.0
#: So much is measured before a network is built: at 10 ms, two seconds and a half.
FIRST_PROBES, FIRST_PERIOD_S = 250, 0.01

TOKEN_BYTES = 16
_PROBE = struct.Struct("!16sQd")
_ANSWER = struct.Struct("!16sQdddd")


@dataclass(frozen=True, slots=True)
class Probed:
    """What was seen of the way to a host: samples, and how many probes had no answer."""

    samples: tuple[ClockSample, ...]
    sent: int
    lost: int

    @property
    def least_round_trip_s(self) -> float | None:
        """The way itself: what others took longer is queues and scheduling. None without an answer."""
        return min((one.round_trip_s for one in self.samples), default=None)


class Echo:
    """Answers probes that bear the token, from a thread of its own, between entry and leaving."""

    def __init__(self, address: IPv4Address, token: bytes, underlay: Path = OWN) -> None:
        """OSError where the port is taken."""
        self._token = token
        self._socket = inside(underlay, lambda: _bound(address, PROBE_PORT))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._answer, name="echo", daemon=True)

    def __enter__(self) -> Echo:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._socket.close()

    def _answer(self) -> None:
        while not self._over.is_set():
            if not select.select([self._socket], [], [], 0.2)[0]:
                continue
            with contextlib.suppress(OSError):  # whoever asked has gone
                data, sender = self._socket.recvfrom(_PROBE.size + 1)
                received = time.monotonic()
                if len(data) != _PROBE.size:
                    continue
                token, number, sent = _PROBE.unpack(data)
                if hmac.compare_digest(token, self._token):
                    said = _ANSWER.pack(token, number, sent, received, time.monotonic(), wall_ahead_s())
                    self._socket.sendto(said, sender)


class Prober:
    """Probes some hosts, from a thread of its own, between entry and leaving. Any thread may ask what was seen."""

    def __init__(
        self, hosts: Mapping[str, IPv4Address], token: bytes, underlay: Path = OWN, period_s: float = PERIOD_S
    ) -> None:
        self._hosts = dict(hosts)
        self._names = {str(address): name for name, address in hosts.items()}
        self._token = token
        self._period_s = period_s
        self._socket = inside(underlay, lambda: _bound(IPv4Address(0), 0))
        self._lock = threading.Lock()
        self._samples: dict[str, list[ClockSample]] = {name: [] for name in hosts}
        self._waiting: dict[str, dict[int, float]] = {name: {} for name in hosts}
        self._sent = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prober", daemon=True)

    def __enter__(self) -> Prober:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._socket.close()

    def seen(self) -> dict[str, Probed]:
        """What was seen of each host since the last call."""
        with self._lock:
            found = {}
            for name in self._hosts:
                late = [number for number, sent in self._waiting[name].items() if time.monotonic() - sent > LATEST_S]
                for number in late:
                    del self._waiting[name][number]
                samples, self._samples[name] = tuple(self._samples[name]), []
                found[name] = Probed(samples, len(samples) + len(late), len(late))
            return found

    def _run(self) -> None:
        due = time.monotonic()
        while not self._over.is_set():
            self._send()
            due = max(due + self._period_s, time.monotonic())
            while (left := due - time.monotonic()) > 0:
                if select.select([self._socket], [], [], left)[0]:
                    self._receive()

    def _send(self) -> None:
        self._sent += 1
        for name, address in self._hosts.items():
            with contextlib.suppress(OSError):  # no way there: it stays without an answer
                sent = time.monotonic()
                with self._lock:
                    self._waiting[name][self._sent] = sent
                self._socket.sendto(_PROBE.pack(self._token, self._sent, sent), (str(address), PROBE_PORT))

    def _receive(self) -> None:
        came = time.monotonic()
        with contextlib.suppress(OSError):  # a host that refuses: it stays without an answer
            data, (sender, _) = self._socket.recvfrom(_ANSWER.size + 1)
            name = self._names.get(sender)
            if name is None or len(data) != _ANSWER.size:
                return
            token, number, _, received, answered, ahead = _ANSWER.unpack(data)
            if not hmac.compare_digest(token, self._token):
                return
            with self._lock:
                sent = self._waiting[name].pop(number, None)
                if sent is not None:
                    self._samples[name].append(ClockSample(sent, received, answered, came, ahead - wall_ahead_s()))


def measure(hosts: Mapping[str, IPv4Address], token: bytes, underlay: Path = OWN) -> dict[str, Probed]:
    """What the way to each host is like before anything is built; takes FIRST_PROBES · FIRST_PERIOD_S."""
    with Prober(hosts, token, underlay, FIRST_PERIOD_S) as prober:
        time.sleep(FIRST_PROBES * FIRST_PERIOD_S)
    return prober.seen()


def wall_ahead_s() -> float:
    """How far this host's wall clock is ahead of its monotonic one."""
    return time.time() - time.monotonic()


def path_mtu(address: IPv4Address, underlay: Path = OWN) -> int:
    """The largest packet of IP that leaves this host whole for another, in bytes, as its route's device says.

    What routers on the way let through is seen by the tunnels themselves: their packets are not to be fragmented.
    """

    def ask() -> int:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.setsockopt(socket.IPPROTO_IP, _MTU_DISCOVER, _DO)
            probe.connect((str(address), PROBE_PORT))
            return int(probe.getsockopt(socket.IPPROTO_IP, _MTU))

    return inside(underlay, ask)


#: ip(7): the socket module has no names for them.
_MTU_DISCOVER, _DO, _MTU = 10, 2, 14


def _bound(address: IPv4Address, port: int) -> socket.socket:
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.bind((str(address), port))
    opened.setblocking(False)
    return opened
