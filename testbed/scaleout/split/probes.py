"""Probes between hosts: round trips, loss and clocks, from small UDP datagrams that are echoed at once.

    probe    token (16), number (8), sent (8)                                     on the sender's monotonic clock
    answer   the same, received (8), answered (8), wall − monotonic (8)           on the answering host's

Probes cross the hosts' own network while a run goes on. Only probes with the network's token are answered: an open echo
could be abused by attackers.

    ours    sent ------------------------- came
    theirs        received -- answered

The offset of the other clock is ((received − sent) + (answered − came)) / 2 (RFC 5905, section 8). The error is at most
half of the round trip, and reaches it where one direction takes all the time. So the sample with the least round trip
in each stretch of time counts. Drift is the slope of a least-squares line through those samples.

Durations use monotonic clocks, which nobody sets; these begin anywhere, so an offset of hours between two hosts means
nothing. Times of day use wall clocks, which must agree.
"""

from __future__ import annotations

import contextlib
import hmac
import select
import socket
import struct
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from math import copysign, sqrt
from pathlib import Path
from statistics import fmean, linear_regression
from typing import Any, Self

from testbed.emulation.network.namespace import inside
from testbed.emulation.network.share import OWN

#: The UDP port of the echo, next to the tunnels' port.
PROBE_PORT = 14790
#: The seconds between two probes of a host while a network is up: 20 datagrams a second, 17 kbit/s.
PERIOD_S = 0.05
#: A probe without an answer after this many seconds counts as lost.
LATEST_S = 2.0
#: The number and the period in seconds of the probes before a network is built, which take two seconds and a half.
FIRST_PROBES, FIRST_PERIOD_S = 250, 0.01

#: The seconds of a stretch. The 40 probes in two seconds are hardly ever all held up.
STRETCH_S = 2.0
#: The fewest stretches from which drift is estimated: two points of a line do not say how well the line fits.
LEAST_STRETCHES = 4

TOKEN_BYTES = 16
_PROBE = struct.Struct("!16sQd")
_ANSWER = struct.Struct("!16sQdddd")


# Clocks, pure ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClockSample:
    """A probe and its answer, in seconds."""

    #: On our monotonic clock.
    sent: float
    #: On the other host's monotonic clock, as is `answered`.
    received: float
    answered: float
    #: On our monotonic clock.
    came: float
    #: (Wall − monotonic) on the other host, less the same on ours.
    wall_ahead: float = 0.0

    @property
    def round_trip_s(self) -> float:
        """The time on the way, there and back."""
        return (self.came - self.sent) - (self.answered - self.received)

    @property
    def offset_s(self) -> float:
        """The lead of the other monotonic clock over ours."""
        return ((self.received - self.sent) + (self.answered - self.came)) / 2

    @property
    def wall_offset_s(self) -> float:
        """The lead of the other wall clock over ours."""
        return self.offset_s + self.wall_ahead


@dataclass(frozen=True, slots=True)
class ClockEstimate:
    """The estimate of another host's clock, from samples."""

    #: The moment of the newest sample, on our monotonic clock.
    at_s: float
    #: How far the other monotonic clock was ahead at `at_s`, and the largest possible error.
    offset_s: float
    offset_bound_s: float
    #: The largest certain distance of the wall clocks: a sample's offset less the offset's largest possible error.
    wall_offset_s: float
    #: The largest possible error of the offset over all stretches.
    bound_s: float
    #: The relative drift and its standard error; None while too few stretches were seen.
    drift: float | None
    drift_error: float
    #: The time over which the clock was measured.
    span_s: float

    def theirs(self, ours_s: float) -> float:
        """Convert a moment of our monotonic clock to the other host's."""
        return ours_s + self.offset_s + (self.drift or 0.0) * (ours_s - self.at_s)

    def ours(self, theirs_s: float) -> float:
        """Convert a moment of the other host's monotonic clock to ours."""
        return self.at_s + (theirs_s - self.at_s - self.offset_s) / (1 + (self.drift or 0.0))


def estimate(samples: Iterable[ClockSample]) -> ClockEstimate:
    """Estimate a clock from at least one sample."""
    best = best_of_stretches(samples)
    last, drift, error = best[-1], None, 0.0
    if len(best) >= LEAST_STRETCHES:
        drift, error = _slope([one.came for one in best], [one.offset_s for one in best])
    return ClockEstimate(
        at_s=last.came,
        offset_s=last.offset_s,
        offset_bound_s=last.round_trip_s / 2,
        wall_offset_s=max((certain(one.wall_offset_s, one.round_trip_s / 2) for one in best), key=abs),
        bound_s=max(one.round_trip_s for one in best) / 2,
        drift=drift,
        drift_error=error,
        span_s=last.came - best[0].came,
    )


def certain(value: float, bound: float) -> float:
    """Return the part of a value that is beyond doubt when the value may be off by `bound`."""
    return copysign(max(abs(value) - bound, 0.0), value)


def best_of_stretches(samples: Iterable[ClockSample]) -> list[ClockSample]:
    """Return the sample with the least round trip of each stretch of time, in order."""
    best: dict[int, ClockSample] = {}
    for one in samples:
        stretch = int(one.came // STRETCH_S)
        if stretch not in best or one.round_trip_s < best[stretch].round_trip_s:
            best[stretch] = one
    return [best[stretch] for stretch in sorted(best)]


def _slope(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Return the slope of the least-squares line, and the slope's standard error."""
    slope, x, y = linear_regression(xs, ys).slope, fmean(xs), fmean(ys)
    residual = sum((b - y - slope * (a - x)) ** 2 for a, b in zip(xs, ys, strict=True))
    return slope, sqrt(residual / (len(xs) - 2) / sum((a - x) ** 2 for a in xs))


# On the network -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Probed:
    """The probes that were sent to one host: those answered, and the number of those lost."""

    samples: tuple[ClockSample, ...]
    sent: int
    #: The number of probes without an answer.
    lost: int

    @property
    def least_round_trip_s(self) -> float | None:
        """The round trip of the path itself, without queues and scheduling; None without an answer."""
        return min((one.round_trip_s for one in self.samples), default=None)


class _Probing:
    """A socket of probes and a thread that serves it while the context is entered."""

    def __init__(self, address: IPv4Address, port: int, token: bytes, underlay: Path) -> None:
        self._token = token
        self._socket = inside(underlay, lambda: _bound(address, port))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        raise NotImplementedError

    def _receive(self, form: struct.Struct, within_s: float) -> tuple[float, tuple[Any, ...], Any] | None:
        """Return the next datagram of this form that has the token: its moment, its fields and its sender; or None."""
        arrivals = select.poll()  # `select` refuses descriptors from 1,024 on
        arrivals.register(self._socket, select.POLLIN)
        if not arrivals.poll(within_s * 1e3):
            return None
        came = time.monotonic()
        with contextlib.suppress(OSError):  # the sender has gone, or a host refuses probes
            data, sender = self._socket.recvfrom(form.size + 1)
            if len(data) == form.size and hmac.compare_digest(data[:TOKEN_BYTES], self._token):
                return came, form.unpack(data), sender
        return None


class Echo(_Probing):
    """Answers the probes of other hosts that carry the token."""

    def __init__(self, address: IPv4Address, token: bytes, underlay: Path = OWN) -> None:
        """Bind the probes' port in the network namespace `underlay`. Raises OSError where the port is taken."""
        super().__init__(address, PROBE_PORT, token, underlay)

    def _run(self) -> None:
        while not self._over.is_set():
            if (received := self._receive(_PROBE, 0.2)) is not None:
                came, probe, sender = received
                with contextlib.suppress(OSError):  # the sender has gone
                    self._socket.sendto(_ANSWER.pack(*probe, came, time.monotonic(), _wall_ahead_s()), sender)


class Prober(_Probing):
    """Sends probes to hosts, and keeps their answers, which show round trips, loss and the hosts' clocks.

    Any thread may call `seen`.
    """

    def __init__(
        self, hosts: Mapping[str, IPv4Address], token: bytes, underlay: Path = OWN, period_s: float = PERIOD_S
    ) -> None:
        super().__init__(IPv4Address(0), 0, token, underlay)
        self._hosts = dict(hosts)
        self._names = {str(address): name for name, address in hosts.items()}
        self._period_s = period_s
        self._lock = threading.Lock()
        self._samples: dict[str, list[ClockSample]] = {name: [] for name in hosts}
        self._waiting: dict[str, dict[int, float]] = {name: {} for name in hosts}
        self._sent = 0

    def seen(self) -> dict[str, Probed]:
        """Return the answered and the lost probes of each host since the last call."""
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
                if (received := self._receive(_ANSWER, left)) is not None:
                    self._keep(*received)

    def _send(self) -> None:
        self._sent += 1
        for name, address in self._hosts.items():
            with contextlib.suppress(OSError):  # without a route the probe stays unanswered
                sent = time.monotonic()
                with self._lock:
                    self._waiting[name][self._sent] = sent
                self._socket.sendto(_PROBE.pack(self._token, self._sent, sent), (str(address), PROBE_PORT))

    def _keep(self, came: float, answer: tuple[Any, ...], sender: Any) -> None:
        _, number, _, received, answered, ahead = answer
        if (name := self._names.get(sender[0])) is None:
            return
        with self._lock:
            sent = self._waiting[name].pop(number, None)
            if sent is not None:
                self._samples[name].append(ClockSample(sent, received, answered, came, ahead - _wall_ahead_s()))


def measure(hosts: Mapping[str, IPv4Address], token: bytes, underlay: Path = OWN) -> dict[str, Probed]:
    """Probe hosts before anything is built, for FIRST_PROBES · FIRST_PERIOD_S seconds."""
    with Prober(hosts, token, underlay, FIRST_PERIOD_S) as prober:
        time.sleep(FIRST_PROBES * FIRST_PERIOD_S)
    return prober.seen()


def path_mtu(address: IPv4Address, underlay: Path = OWN) -> int:
    """Return the largest IP packet, in bytes, that leaves this host unfragmented for another, by its route's device.

    A smaller limit of routers on the way shows in the tunnels, whose packets may not be fragmented.
    """

    def ask() -> int:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.setsockopt(socket.IPPROTO_IP, _MTU_DISCOVER, _DO)
            probe.connect((str(address), PROBE_PORT))
            return int(probe.getsockopt(socket.IPPROTO_IP, _MTU))

    return inside(underlay, ask)


#: ip(7): the socket module has no names for these options.
_MTU_DISCOVER, _DO, _MTU = 10, 2, 14


def _wall_ahead_s() -> float:
    """Return how far this host's wall clock is ahead of its monotonic clock."""
    return time.time() - time.monotonic()


def _bound(address: IPv4Address, port: int) -> socket.socket:
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.bind((str(address), port))
    opened.setblocking(False)
    return opened
