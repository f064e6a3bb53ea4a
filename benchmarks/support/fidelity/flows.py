"""Traffic over a link, seen at its two hosts: round trips by ping, TCP by iperf3, datagrams by our own sender.

Arrivals are read from the kernel's counters at the target, not from iperf3: its server sees bytes in the order in which
they were sent, so that one lost segment delays all bytes after it, which then arrive at once.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import log2
from pathlib import Path

from benchmarks.support.fidelity.datagrams import Pace, Sending, sending
from benchmarks.support.fidelity.subjects import Subject
from testbed.link import MTU_FRAME_BYTES, TCP_PAYLOAD_BYTES
from testbed.telemetry.host import CpuMeter

PINGS = 12
PING_INTERVAL_S = 0.05

#: Frames of UDP: 14 bytes of Ethernet, 20 of IP and 8 of UDP before the payload; no frame is shorter than 60.
UDP_HEADERS_BYTES = 42
MIN_UDP_PAYLOAD_BYTES = 18
#: Datagrams of a rate's measurement; each is 0.17 % of it. On slow links they are smaller than a full frame.
RATE_PACKETS = 600
#: A flood's rate over the link's: above 1, so that a sender's pauses do not show.
FLOOD_EXCESS = 1.25
#: The same to measure what a host carries: above the HEADROOM that a host must carry to be on time.
CEILING_EXCESS = 2.0
#: The same to measure loss: below 1, so that the queue loses nothing.
LOSS_SHARE = 0.8
#: The most datagrams per second to measure loss: a slow host forwards them easily.
LOSS_PACKETS_PER_S = 5000
#: After a pause, the sender sends at most this part of the link's queue at once.
BURST_SHARE = 0.5

#: TCP doubles its window from ten segments once a round trip until the link is full, then repairs its losses.
TCP_HEADERS_BYTES = MTU_FRAME_BYTES - TCP_PAYLOAD_BYTES
FIRST_WINDOW_BYTES = 10 * TCP_PAYLOAD_BYTES
MENDING_ROUND_TRIPS = 8
WARM_UP_S = 0.5

#: More than iperf3 and its server send each other beforehand: after these bytes the flow itself arrives.
TALK_BYTES = 5000
#: The most time until then on a busy host.
TALK_S, TALK_ROUND_TRIPS = 12.0, 20
PORT = 5201
POLL_S = 0.01
LISTEN_DEADLINE_S = 20.0

#: The netem backend measures how long packets waited if it is asked at least every 0.15 s.
LOOK_S = 0.1

#: The link is idle if nothing has arrived for this long and a round trip.
SILENCE_S = 0.15


class FlowFailed(RuntimeError):
    """iperf3 did not begin."""


@dataclass(frozen=True, slots=True)
class Look:
    """Counters at a moment: what arrived on the target's interface, and what left on the source's."""

    at: float
    bytes_arrived: int
    packets_arrived: int
    bytes_left: int
    packets_left: int

    def payload_since(self, before: Look, headers: int) -> int:
        """Return the bytes that arrived since `before`, without headers.

        A super-packet counts as one header, though each of its segments would have its own.
        """
        packets = self.packets_arrived - before.packets_arrived
        return self.bytes_arrived - before.bytes_arrived - headers * packets

    def sent_since(self, before: Look, headers: int) -> int:
        """Return the bytes that left since `before`, without headers."""
        return self.bytes_left - before.bytes_left - headers * (self.packets_left - before.packets_left)


@dataclass(frozen=True, slots=True)
class Rate:
    """The payload that arrived over a window, relative to the most that the link's rate carries in full packets."""

    #: The relative error of the rate.
    error: float
    #: One packet as it arrives, relative to all; with TCP it may be a super-packet.
    resolution: float
    #: The bytes that the source sent, relative to the link's rate.
    offered: float
    #: The busy share of this machine's processors meanwhile.
    cpu: float
    #: The share of the time in which packets waited for the link, by the shaper's counters; None without counters.
    waiting: float | None
    #: The rate's error while packets waited.
    waiting_error: float | None


def look(subject: Subject) -> Look:
    """Read the counters of both hosts; each has one interface beside the loopback."""
    received, sent = _counters(subject.target.pid), _counters(subject.source.pid)
    return Look(time.monotonic(), received[0], received[1], sent[8], sent[9])


def _counters(pid: int) -> list[int]:
    lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    rows = (line.split(":") for line in lines)
    return next([int(word) for word in counters.split()] for name, counters in rows if name.strip() != "lo")


def round_trip_s(subject: Subject) -> float | None:
    """Return the mean of PINGS round trips over the idle link; None without an answer. A first ping is left out."""
    _ping(subject, 1)
    said = _ping(subject, PINGS)
    closing = re.search(r"= [\d.]+/([\d.]+)/", said)
    return float(closing[1]) / 1e3 if closing else None


def _ping(subject: Subject, count: int) -> str:
    words = ["ping", "-nq", "-c", str(count), "-i", str(PING_INTERVAL_S), "-W", "2", subject.address]
    return str(subject.source.popen(words, stdout=subprocess.PIPE).communicate()[0].decode())


def tcp_rate(subject: Subject, window_s: float) -> Rate:
    """Measure the rate of one TCP connection after it has filled the link."""
    state = subject.state
    round_trip = 2 * state.delay_s
    doublings = max(log2(max(state.rate_bps / 8 * round_trip, 1) / FIRST_WINDOW_BYTES), 0)
    warm_up_s = WARM_UP_S + round_trip * (doublings + MENDING_ROUND_TRIPS)
    with flowing(subject, []):
        return _rate(subject, warm_up_s, window_s, TCP_HEADERS_BYTES, subject.frame_bytes)


def udp_rate(subject: Subject, window_s: float) -> Rate:
    """Measure the rate of a flood of datagrams. Random loss thins the flood out before it takes the link's time."""
    state = subject.state
    frame = min(int(state.rate_bps / 8 * window_s / RATE_PACKETS), subject.frame_bytes)
    payload = max(frame - UDP_HEADERS_BYTES, MIN_UDP_PAYLOAD_BYTES)
    return _flood(subject, payload, state.rate_bps * FLOOD_EXCESS / (1 - state.loss), window_s)


def ceiling_bps(subject: Subject, window_s: float) -> float:
    """Measure what this host carries from source to target without limit, delay or loss.

    Returns:
        Bit/s of full frames: of one TCP connection or, over a link that loses, of a flood at twice the link's rate.
    """
    asked = subject.state
    subject.unlimit()
    if asked.loss:
        rate = _flood(subject, subject.frame_bytes - UDP_HEADERS_BYTES, asked.rate_bps * CEILING_EXCESS, window_s)
    else:
        rate = tcp_rate(subject, window_s)
    free_bps = subject.state.rate_bps
    subject.change(asked)
    return (1 + rate.error) * free_bps


def _flood(subject: Subject, payload: int, bps: float, window_s: float) -> Rate:
    frame = payload + UDP_HEADERS_BYTES
    with _datagrams(subject, payload, bps / 8 / frame):
        return _rate(subject, WARM_UP_S + 2 * subject.state.delay_s, window_s, UDP_HEADERS_BYTES, frame)


def _rate(subject: Subject, warm_up_s: float, window_s: float, headers: int, frame: int) -> Rate:
    """Measure the rate of a flow that is under way."""
    cpu = CpuMeter()
    time.sleep(warm_up_s)
    cpu.read()
    counters, before = subject.counters(), look(subject)
    while time.monotonic() < before.at + window_s:
        time.sleep(LOOK_S)
        now = subject.counters()
    after, busy = look(subject), cpu.read()
    seconds, rate = after.at - before.at, subject.state.rate_bps
    ideal = rate * (frame - headers) / frame
    waiting = (now.busy_s - counters.busy_s) / seconds if now and counters else None
    size = after.bytes_arrived - before.bytes_arrived
    allowed = now.allowed_bytes - counters.allowed_bytes if now and counters else 0.0
    return Rate(
        error=after.payload_since(before, headers) * 8 / seconds / ideal - 1,
        resolution=8 / seconds / rate * max(frame, size / max(after.packets_arrived - before.packets_arrived, 1)),
        offered=after.sent_since(before, headers) * 8 / seconds / ideal,
        cpu=busy,
        waiting=waiting,
        waiting_error=(now.steady_bytes - counters.steady_bytes) / allowed - 1
        if now and counters and allowed
        else None,
    )


@contextmanager
def flowing(subject: Subject, words: list[str]) -> Iterator[None]:
    """Send by iperf3 from source to target. The flow has begun when this yields; afterwards the link is idle."""
    with _server(subject), _client(subject, ["-t", "600", *words]) as client:
        if not _has_begun(subject, client):
            raise FlowFailed(f"iperf3 {' '.join(words)} does not begin over {subject.name}'s {subject.state}")
        yield
    _settle(subject)


@contextmanager
def _datagrams(subject: Subject, payload: int, per_s: float) -> Iterator[Sending]:
    """Send `per_s` datagrams per second. Afterwards the link is idle."""
    burst = max(int(subject.state.queue_bytes * BURST_SHARE / (payload + UDP_HEADERS_BYTES)), 1)
    source, target = (Path(f"/proc/{host.pid}/ns/net") for host in (subject.source, subject.target))
    with sending(source, target, subject.address, Pace(payload, per_s, burst)) as flow:
        yield flow
    _settle(subject)


@dataclass(frozen=True, slots=True)
class Loss:
    """Datagrams that were sent, and those that were lost."""

    sent: int
    lost: int
    #: By the shaper's counters: datagrams lost at random. None without counters.
    random: int | None
    #: By the shaper's counters: datagrams that found the link's queue full.
    queue_full: int | None


def udp_loss(subject: Subject, seconds: float) -> Loss:
    """Measure the loss of a link whose queue has room for all datagrams."""
    most = int(subject.state.rate_bps * LOSS_SHARE / 8 / LOSS_PACKETS_PER_S) - UDP_HEADERS_BYTES
    payload = min(max(most, MIN_UDP_PAYLOAD_BYTES), subject.frame_bytes - UDP_HEADERS_BYTES)
    share_per_s = subject.state.rate_bps * LOSS_SHARE / 8 / (payload + UDP_HEADERS_BYTES)
    counters, before = subject.counters(), _delivered(subject)
    with _datagrams(subject, payload, min(share_per_s, LOSS_PACKETS_PER_S)) as flow:
        time.sleep(seconds)
    lost, now = flow.sent - (_delivered(subject) - before), subject.counters()
    if counters is None or now is None:
        return Loss(flow.sent, lost, None, None)
    random, queue_full = now.dropped_loss - counters.dropped_loss, now.dropped_queue - counters.dropped_queue
    return Loss(flow.sent, lost, random, queue_full)


def _delivered(subject: Subject) -> int:
    """Return the IPv4 packets that reached the target whole, whether or not a socket had room for them."""
    lines = Path(f"/proc/{subject.target.pid}/net/snmp").read_text().splitlines()
    names, values = (line.split()[1:] for line in lines if line.startswith("Ip:"))
    return int(dict(zip(names, values, strict=True))["InDelivers"])


def _has_begun(subject: Subject, client: subprocess.Popen[bytes]) -> bool:
    begun = look(subject).bytes_arrived + TALK_BYTES
    deadline = time.monotonic() + _talk_s(subject)
    while look(subject).bytes_arrived < begun:
        if client.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def _talk_s(subject: Subject) -> float:
    return TALK_S + TALK_ROUND_TRIPS * 2 * subject.state.delay_s


def _settle(subject: Subject) -> None:
    """Wait until nothing arrives, so that the next flow finds the link idle."""
    silence_s = SILENCE_S + 2 * subject.state.delay_s
    last, since = look(subject), time.monotonic()
    while time.monotonic() < since + silence_s:
        time.sleep(POLL_S)
        now = look(subject)
        if now.packets_arrived != last.packets_arrived:
            last, since = now, now.at


@contextmanager
def _client(subject: Subject, words: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    command = ["iperf3", "-c", subject.address, *words]
    process = subject.source.popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def _server(subject: Subject) -> Iterator[None]:
    """Run an iperf3 server at the target, which listens when this yields."""
    process = subject.target.popen(["iperf3", "-s", "-1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + LISTEN_DEADLINE_S
        while not _listens(process.pid):
            if process.poll() is not None or time.monotonic() > deadline:
                raise FlowFailed(f"no iperf3 server at {subject.name}'s target")
            time.sleep(POLL_S)
        yield
    finally:
        process.kill()
        process.wait()


def _listens(pid: int) -> bool:
    """Return whether a process listens on iperf3's port in the namespace of the process `pid`."""
    rows = (Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:] for table in ("tcp", "tcp6"))
    fields = (row.split() for table in rows for row in table)
    return any(row[1].endswith(f":{PORT:04X}") and row[3] == "0A" for row in fields)
