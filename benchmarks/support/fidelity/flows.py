"""What a link does to traffic, seen at its two hosts: round trips by ping, TCP by iperf3, datagrams by our own sender.

What arrives is read from the kernel's counters at the target, not taken from iperf3: its server sees bytes in the order
they were sent, so that one lost segment holds back, and then releases, all that came after it.
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
#: A rate is told by so many datagrams, each being 0.17 % of them: on slow links they are smaller than a full frame.
RATE_PACKETS = 600
#: Offered above the link's rate, so that a sender's pauses do not show, …
FLOOD_EXCESS = 1.25
#: … above what a host must carry to be punctual with it, where the question is what it carries, …
CEILING_EXCESS = 2.0
#: … and for loss below it, so that none is the queue's doing, as many a second as a slow host easily forwards.
LOSS_SHARE = 0.8
LOSS_PACKETS_PER_S = 5000
#: Sent at once, after a pause of the sender, is at most this part of what may wait for the link.
BURST_SHARE = 0.5

#: TCP fills a link after doubling from its first ten segments once a round trip, and repairs what it then lost.
TCP_HEADERS_BYTES = MTU_FRAME_BYTES - TCP_PAYLOAD_BYTES
FIRST_WINDOW_BYTES = 10 * TCP_PAYLOAD_BYTES
MENDING_ROUND_TRIPS = 8
WARM_UP_S = 0.5

#: More than iperf3 and its server tell each other beforehand: by then the flow itself arrives.
TALK_BYTES = 5000
#: How long that may take on a busy host.
TALK_S, TALK_ROUND_TRIPS = 12.0, 20
PORT = 5201
POLL_S = 0.01
LISTEN_DEADLINE_S = 20.0

#: The netem backend tells how long packets waited if it is asked at least every 0.15 s.
LOOK_S = 0.1

#: Nothing has arrived for this long and a round trip: the link is idle again.
SILENCE_S = 0.15


class FlowFailed(RuntimeError):
    """iperf3 did not begin."""


@dataclass(frozen=True, slots=True)
class Look:
    """What had arrived on an interface by a moment, and left on the other host's."""

    at: float
    bytes_arrived: int
    packets_arrived: int
    bytes_left: int
    packets_left: int

    def payload_since(self, before: Look, headers: int) -> int:
        """What of the bytes was no header: a super-packet has one where each of its segments would have its own."""
        packets = self.packets_arrived - before.packets_arrived
        return self.bytes_arrived - before.bytes_arrived - headers * packets

    def sent_since(self, before: Look, headers: int) -> int:
        """The same of what left."""
        return self.bytes_left - before.bytes_left - headers * (self.packets_left - before.packets_left)


@dataclass(frozen=True, slots=True)
class Rate:
    """The payload that arrived over a window, relative to what the link's rate makes of full packets.

    `resolution` is one packet as it arrives, which with TCP may be a super-packet. `offered` is what the source sent,
    relative to the link's rate. `cpu` is the busy share of this machine's processors meanwhile. `waiting` is the share
    of the time in which packets waited for the link, and `waiting_error` the rate's error then, by the shaper's
    counters where it has some.
    """

    error: float
    resolution: float
    offered: float
    cpu: float
    waiting: float | None
    waiting_error: float | None


def look(subject: Subject) -> Look:
    """Both hosts have one interface but for the loopback."""
    received, sent = _counters(subject.target.pid), _counters(subject.source.pid)
    return Look(time.monotonic(), received[0], received[1], sent[8], sent[9])


def _counters(pid: int) -> list[int]:
    lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    rows = (line.split(":") for line in lines)
    return next([int(word) for word in counters.split()] for name, counters in rows if name.strip() != "lo")


def round_trip_s(subject: Subject) -> float | None:
    """The mean of some round trips over the idle link, after one that is left out; None without an answer."""
    _ping(subject, 1)
    said = _ping(subject, PINGS)
    closing = re.search(r"= [\d.]+/([\d.]+)/", said)
    return float(closing[1]) / 1e3 if closing else None


def _ping(subject: Subject, count: int) -> str:
    words = ["ping", "-nq", "-c", str(count), "-i", str(PING_INTERVAL_S), "-W", "2", subject.address]
    return str(subject.source.popen(words, stdout=subprocess.PIPE).communicate()[0].decode())


def tcp_rate(subject: Subject, window_s: float) -> Rate:
    """What one TCP connection carries once it has filled the link."""
    state = subject.state
    round_trip = 2 * state.delay_s
    doublings = max(log2(max(state.rate_bps / 8 * round_trip, 1) / FIRST_WINDOW_BYTES), 0)
    warm_up_s = WARM_UP_S + round_trip * (doublings + MENDING_ROUND_TRIPS)
    with flowing(subject, []):
        return _rate(subject, warm_up_s, window_s, TCP_HEADERS_BYTES, subject.frame_bytes)


def udp_rate(subject: Subject, window_s: float) -> Rate:
    """What passes of a flood, which loss on the way thins out before it takes the link's time."""
    state = subject.state
    frame = min(int(state.rate_bps / 8 * window_s / RATE_PACKETS), subject.frame_bytes)
    payload = max(frame - UDP_HEADERS_BYTES, MIN_UDP_PAYLOAD_BYTES)
    return _flood(subject, payload, state.rate_bps * FLOOD_EXCESS / (1 - state.loss), window_s)


def ceiling_bps(subject: Subject, window_s: float) -> float:
    """What this host carries from source to target where nothing limits, delays or loses it: bit/s of full frames of
    one TCP connection or, over a link that loses, of a flood at twice its rate.
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
    """Of what flows already."""
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
    """iperf3 sends from source to target, and has begun to when this yields; the link is idle after it."""
    with _server(subject), _client(subject, ["-t", "600", *words]) as client:
        if not _has_begun(subject, client):
            raise FlowFailed(f"iperf3 {' '.join(words)} does not begin over {subject.name}'s {subject.state}")
        yield
    _settle(subject)


@contextmanager
def _datagrams(subject: Subject, payload: int, per_s: float) -> Iterator[Sending]:
    """So many datagrams a second flow; the link is idle after it."""
    burst = max(int(subject.state.queue_bytes * BURST_SHARE / (payload + UDP_HEADERS_BYTES)), 1)
    source, target = (Path(f"/proc/{host.pid}/ns/net") for host in (subject.source, subject.target))
    with sending(source, target, subject.address, Pace(payload, per_s, burst)) as flow:
        yield flow
    _settle(subject)


@dataclass(frozen=True, slots=True)
class Loss:
    """Datagrams sent and lost. By the shaper's counters, where it has some, `random` of these were lost at random and
    `queue_full` found the link's queue full.
    """

    sent: int
    lost: int
    random: int | None
    queue_full: int | None


def udp_loss(subject: Subject, seconds: float) -> Loss:
    """What is lost over a link that has room for all."""
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
    """Packets of IPv4 that came to the target whole, whether or not anyone had room for them there."""
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
    """Wait until nothing arrives any more, so that what is next finds the link idle."""
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
    """An iperf3 server at the target, listening when this yields."""
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
    """Whether something listens on iperf3's port in the process's namespace."""
    rows = (Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:] for table in ("tcp", "tcp6"))
    fields = (row.split() for table in rows for row in table)
    return any(row[1].endswith(f":{PORT:04X}") and row[3] == "0A" for row in fields)
