"""Measures idle links from outside: round trips by ping, rates by a flood of UDP packets.

The kernel counts the flood where it arrives, so the measurement trusts neither the shaper nor the sender.
"""

from __future__ import annotations

import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log, log1p, sqrt
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING

from testbed.emulation.errors import EmulationError
from testbed.emulation.network.namespace import inside
from testbed.emulation.shaping.base import passes
from testbed.link import MTU_FRAME_BYTES, GilbertElliott, LinkState, link_ends, link_name

if TYPE_CHECKING:  # importing it needs Mininet, which `simulate` and `report` do without
    from testbed.emulation.network.network import Network

PINGS = 8
#: The exit codes of a shell that could not start a program.
NOT_STARTED = (126, 127)
PING_INTERVAL_S = 0.1
#: The seconds in which a busy host answers a ping, beyond the links' own delays: these may be a minute each way.
PATIENCE_S = 3.0
#: The frame of ping's default echo request: 56 bytes of data with headers of 8 (ICMP), 20 (IP) and 14 bytes (Ethernet).
PING_FRAME_BYTES = 98

#: The probability with which chance alone, jitter or loss, makes any link of a measurement look wrong. Each link gets
#: an equal part of it: at 1 % for each, a third of the networks with forty links would be called wrong.
CHANCE = 0.01

#: A flood must fill the queue before it is counted, so it runs faster than the link, and for a while beforehand. It
#: begins with a few packets at once: an idle token bucket would let its burst (at least two frames) pass unshaped,
#: which on a slow link is a good part of what is counted.
FLOOD_EXCESS = 1.25
FLOOD_HEAD_PACKETS = 8
FLOOD_WARM_UP_S = 0.3
FLOOD_PORT = 9
#: The headers of a frame around its payload: of Ethernet, and of IP and UDP.
ETHERNET_BYTES, IP_UDP_BYTES = 14, 28

#: A rate is counted over the time of this many packets, each 0.3 % of them, within these limits. The upper limit
#: resolves 1 % at 400 kbit/s; slower links are measured less exactly (`rate_resolution`).
COUNTED_PACKETS = 300
MIN_WINDOW_S = 0.75
MAX_WINDOW_S = 3.0

#: If the flood let a link run dry for more than this share of the time, its rate is unknown. One sender in Python
#: offers some 100,000 packets a second, enough for about 1 Gbit/s; a busy host's pauses are longer than a short queue.
DRY_AT_MOST = 0.05

#: The share of bursts of losses that may outlast a flooded link's queue. Where two hundred packets pass and a hundred
#: are lost in turn, in the mean, a queue of 32 frames is empty for a sixth of the time, and the rate would seem as much
#: too low.
LONG_BURST = 0.01

#: A busy host may pause the reader in the middle of a look, and 45 ms of 0.75 s are 6 % of a rate. So each look is the
#: quickest of this many, and its duration counts as uncertainty.
LOOKS = 4

#: The summed rate of links flooded at once: 200 Mbit/s of full-size frames is 16,500 packets a second, which leaves a
#: small host time to keep the rates.
FLOOD_TOTAL_BPS = 200e6

#: A link's turn ends after this many packets, so that a fast link does not starve the others.
TURN_PACKETS = 64
FLOOD_STEP_S = 0.001

#: The buffer holds rate × delay of the fastest links (see `flood_socket`).
FLOOD_BUFFER_BYTES = 1 << 28
#: setsockopt(7) beyond the system's limit, for root; the socket module has no name for it.
SO_SNDBUFFORCE = 32


@dataclass(frozen=True, slots=True)
class LinkFidelity:
    """One link's measured errors. An error is None if it could not be measured.

    Attributes:
        rate_error: The relative error of the rate; None if the link passes nothing, or more than the flood could offer,
            or may have been idle in a burst of losses.
        rtt_error_s: The seconds by which the round trip is outside of what both directions allow for a ping. Infinite
            if no ping was answered; None if one direction passes nothing, or loses so much that silence proves nothing.
        rate_resolution: The smallest rate error that so short a measurement can tell from none.
    """

    rate_error: float | None
    rtt_error_s: float | None
    rate_resolution: float = 0.0

    def worst(self, other: LinkFidelity) -> LinkFidelity:
        """Return the greater error of the rate, beyond its resolution, and that of the round trip."""
        rates = [its for its in (self, other) if its.rate_error is not None]
        rate = max(rates, key=lambda its: abs(its.rate_error or 0.0) - its.rate_resolution, default=self)
        trips = [its.rtt_error_s for its in (self, other) if its.rtt_error_s is not None]
        return LinkFidelity(rate.rate_error, max(trips, key=abs, default=None), rate.rate_resolution)


def measure_links(network: Network, names: Iterable[str] | None = None) -> dict[str, LinkFidelity]:
    """Measure every link that is up, or those of them that are named.

    It takes about two seconds per 200 Mbit/s of links, and up to four if there are links below 5 Mbit/s.
    """
    in_force = {name: state for name, state in network.links_in_force.states().items() if state.up}
    chosen = [name for name in in_force if names is None or name in set(names)]
    round_trips = round_trip_errors(network, chosen, in_force)
    found = {name: LinkFidelity(None, round_trips.get(name)) for name in chosen}
    states = {name: in_force[name] for name in chosen if _lets_through(in_force[name])}
    idle_at = 0.0
    for batch in _batches(states):
        for name, rate in _flood(network, batch).items():
            found[name] = LinkFidelity(rate.error, round_trips.get(name), rate.resolution)
            idle_at = max(idle_at, rate.idle_at)
    time.sleep(max(0.0, idle_at - time.monotonic()))
    return found


def _far_end(network: Network, link: str) -> str:
    """Return the address that the link's source pings."""
    return str(network.addressing.next_hop(*link_ends(link)))


def _lets_through(state: LinkState) -> bool:
    return passes(state) and state.loss < 1


# Round trips ------------------------------------------------------------------------------------------------------


def round_trip_errors(network: Network, names: Iterable[str], states: Mapping[str, LinkState]) -> dict[str, float]:
    """Return the errors of idle round trips in seconds, for links that begin here and can be measured.

    `states` includes the reverse links. ping prints single times of 100 ms and more in whole milliseconds, but its
    closing line in microseconds.

    Raises:
        EmulationError: There is no `ping` on this machine.
    """
    ways = {name: (states[name], states[way_back]) for name in names if (way_back := link_back(name)) in states}
    running = {
        name: network.router(link_ends(name)[0]).popen(
            [
                *("ping", "-nq", "-c", str(PINGS), "-i", str(PING_INTERVAL_S)),
                *("-W", str(answer_s(*way)), _far_end(network, name)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for name, way in ways.items()
        if all(map(_lets_through, way))
    }
    errors, chance = {}, CHANCE / max(len(running), 1)
    for name, process in running.items():
        said = process.communicate()[0].decode(errors="replace")
        if process.returncode in NOT_STARTED:
            raise EmulationError(f"`ping` can't be started: {said.strip()}; apt-get install iputils-ping")
        closing = re.search(r"= ([\d.]+)/([\d.]+)/", said)
        there, back = ways[name]
        if closing is not None:
            measured_ms = float(closing[2 if there.jitter_s or back.jitter_s else 1])
            answers = re.search(r"(\d+) received", said)
            count = int(answers[1]) if answers else PINGS
            errors[name] = round_trip_error(measured_ms / 1e3, there, back, count, chance)
        elif silence(there, back) < chance:
            errors[name] = float("inf")  # no answer at all: the link does not work as requested
    return errors


def silence(there: LinkState, back: LinkState) -> float:
    """Return the probability that the links' own loss leaves no ping an answer; a burst may take all of them."""
    at_random = (1 - (1 - there.loss) * (1 - back.loss)) ** PINGS
    return max([at_random, *(lost_in_a_row(state.bursts, PINGS) for state in (there, back) if state.bursts)])


def lost_in_a_row(chain: GilbertElliott, packets: int) -> float:
    """Return the probability that a chain of losses takes this many packets in a row, from any moment on."""
    bad = chain.p / (chain.p + chain.r)
    good = 1 - bad
    for _ in range(packets):
        good, bad = good * chain.good, bad * chain.bad
        good, bad = good * (1 - chain.p) + bad * chain.r, good * chain.p + bad * (1 - chain.r)
    return good + bad


def answer_s(there: LinkState, back: LinkState) -> int:
    """Return the whole seconds for which a ping over two links waits for its first answer."""
    return ceil(PATIENCE_S + sum(state.delay_s + state.jitter_s for state in (there, back)))


def link_back(name: str) -> str:
    """Return the link of the other direction."""
    source, target = link_ends(name)
    return link_name(target, source)


def mean_delay_s(state: LinkState) -> float:
    """Return the mean delay of a link's packets: none is below 0, so jitter beyond the delay lengthens the mean."""
    beyond_s = max(state.jitter_s - state.delay_s, 0.0)
    return state.delay_s + (beyond_s**2 / (4 * state.jitter_s) if beyond_s else 0.0)


def round_trip_error(
    measured_s: float, there: LinkState, back: LinkState, answers: int = PINGS, chance: float = CHANCE
) -> float:
    """Return the seconds by which a measured round trip is outside the range that its two links' states allow.

    The measured value is the least of some answers, or their mean if there is jitter. It may include the links'
    serialization time, 0.8 ms each way at 1 Mbit/s, or not: a token bucket lets a lone frame pass at once. The mean of
    a few uniform draws of ±jitter scatters by jitter/√3 over the root of their number; with the probability `chance`
    the mean is farther off than is allowed for here.
    """
    delay = mean_delay_s(there) + mean_delay_s(back)
    service = 8 * PING_FRAME_BYTES * (1 / there.rate_bps + 1 / back.rate_bps)
    scatter = NormalDist().inv_cdf(1 - chance / 2) * sqrt((there.jitter_s**2 + back.jitter_s**2) / 3 / answers)
    least, most = delay - scatter, delay + service + scatter
    return min(measured_s - least, 0.0) + max(measured_s - most, 0.0)


# Rates ------------------------------------------------------------------------------------------------------------


def _batches(states: Mapping[str, LinkState]) -> Iterator[dict[str, LinkState]]:
    """Yield groups of links to flood together; slow links, which take longer, are grouped."""
    batch: dict[str, LinkState] = {}
    for name, state in sorted(states.items(), key=lambda item: item[1].rate_bps):
        if batch and sum(map(_needed_bps, batch.values())) + _needed_bps(state) > FLOOD_TOTAL_BPS:
            yield batch
            batch = {}
        batch[name] = state
    if batch:
        yield batch


def _needed_bps(state: LinkState) -> float:
    """Return the rate that keeps a link full: lost packets are lost before they take any of the link's time."""
    return state.rate_bps / (1 - state.loss)


def window_s(state: LinkState) -> float:
    """Return the seconds in which a link's packets are counted: those of COUNTED_PACKETS full frames, within limits."""
    return min(max(COUNTED_PACKETS * MTU_FRAME_BYTES * 8 / state.rate_bps, MIN_WINDOW_S), MAX_WINDOW_S)


@dataclass(frozen=True, slots=True)
class _Rate:
    """A link's rate by a flood: error and resolution as in LinkFidelity, and when the last packet leaves the link."""

    error: float | None
    resolution: float
    idle_at: float


@dataclass(frozen=True, slots=True)
class FloodLook:
    """A flooded link's counters at the moment `at` (monotonic clock), give or take half of `took_s`."""

    at: float
    took_s: float
    bytes_arrived: int
    packets_sent: int = 0
    #: The seconds since the flood began in which the link's queue, as it is modelled, was empty.
    dry_s: float = 0.0


class _Flood:
    """A UDP flood over one link, slightly above its rate.

    It models the link's queue, and so knows for how long the queue was empty.
    """

    def __init__(self, network: Network, link: str, state: LinkState) -> None:
        self.link, self.state = link, state
        self._frame_bytes = network.share.mtu + ETHERNET_BYTES
        self._payload = bytes(network.share.mtu - IP_UDP_BYTES)
        source, target = link_ends(link)
        address = (_far_end(network, link), FLOOD_PORT)
        self._from, self._to = network.router(source), network.router(target)
        self._sink = inside(self._to.netns, udp_socket)
        self._socket = flood_socket(self._from.netns)
        self._sink.bind(address)
        self._socket.connect(address)
        self._interface = source
        self._arrived = self._to.received_bytes()[source]
        self._sent = 0
        self._elapsed_s = self._dry_s = 0.0
        self._queued_s = 0.0

    def close(self) -> None:
        self._socket.close()
        self._sink.close()

    def offer(self, elapsed_s: float) -> bool:
        """Send the packets that are due, at most TURN_PACKETS, and return whether more are due."""
        due = FLOOD_HEAD_PACKETS + int(elapsed_s * _needed_bps(self.state) * FLOOD_EXCESS / 8 / self._frame_bytes)
        before = self._sent
        try:
            for _ in range(min(due - self._sent, TURN_PACKETS)):
                self._socket.send(self._payload)
                self._sent += 1
        except BlockingIOError:  # the whole buffer is in flight or queued, so the link does not run dry
            due = self._sent
            self._queue(elapsed_s, self._full_s)
        self._queue(elapsed_s, (self._sent - before) * self._packet_s)
        return self._sent < due

    def _queue(self, elapsed_s: float, more_s: float) -> None:
        """Advance the modelled queue, in seconds of the link's time, and add `more_s` to it."""
        passed = elapsed_s - self._elapsed_s
        self._elapsed_s = elapsed_s
        self._dry_s += max(passed - self._queued_s, 0.0)
        self._queued_s = min(max(self._queued_s - passed, 0.0) + more_s, self._full_s)

    @property
    def _packet_s(self) -> float:
        """The average link time of a packet in seconds; a lost packet takes none."""
        return 8 * self._frame_bytes / _needed_bps(self.state)

    @property
    def _full_s(self) -> float:
        """The link time of a full queue in seconds, including the packet in transmission."""
        return 8 * max(self.state.queue_bytes, MTU_FRAME_BYTES) / self.state.rate_bps

    def look(self) -> FloodLook:
        """Return the counters now, from the quickest of LOOKS reads."""
        return min((self._look() for _ in range(LOOKS)), key=lambda look: look.took_s)

    def _look(self) -> FloodLook:
        began = time.monotonic()
        arrived = self._to.received_bytes()[self._interface]
        took_s = time.monotonic() - began
        return FloodLook(began + took_s / 2, took_s, arrived, self._sent, self._dry_s)

    def judge(self, before: FloodLook, after: FloodLook, ended: FloodLook) -> _Rate:
        """Return the rate between two looks. `ended` was taken after the last packet was sent."""
        error, resolution = rate_error(self.state, before, after, self._frame_bytes)
        # The packets still waiting: sent and not lost, minus arrived, at most as many as the queue holds.
        unseen_s = ended.packets_sent * self._packet_s - (ended.bytes_arrived - self._arrived) * 8 / self.state.rate_bps
        idle_at = ended.at + min(max(unseen_s, 0.0), self._full_s) + self.state.delay_s + self.state.jitter_s
        return _Rate(error, resolution, idle_at)


def rate_error(state: LinkState, before: FloodLook, after: FloodLook, frame_bytes: int) -> tuple[float | None, float]:
    """Return the relative rate error of a flooded link between two looks, and the resolution.

    The error is None if the link ran dry, or may have done so in a burst of losses. The resolution includes one of the
    flood's packets, which have `frame_bytes` each.
    """
    seconds = after.at - before.at
    expected = state.rate_bps / 8 * seconds
    error = (after.bytes_arrived - before.bytes_arrived) / expected - 1
    dry = (after.dry_s - before.dry_s) / seconds
    unsure_s = state.jitter_s + (before.took_s + after.took_s) / 2
    known = dry <= DRY_AT_MOST and not outlasts_queue(state)
    return (error if known else None), frame_bytes / expected + unsure_s / seconds + dry


def outlasts_queue(state: LinkState) -> bool:
    """Return whether one of a hundred bursts of losses takes longer, under a flood, than a full queue lasts."""
    if state.bursts is None or state.bursts.r == 1:
        return False
    packets = log(LONG_BURST) / log1p(-state.bursts.r)
    return packets * (1 - state.loss) / FLOOD_EXCESS > state.queue_bytes / MTU_FRAME_BYTES


def _flood(network: Network, states: Mapping[str, LinkState]) -> dict[str, _Rate]:
    """Measure the rates of links that are flooded at the same time."""
    floods: list[_Flood] = []
    ended = threading.Event()
    sender = threading.Thread(target=_send, args=(floods, ended))
    try:
        for name, state in states.items():
            floods.append(_Flood(network, name, state))
        sender.start()
        time.sleep(FLOOD_WARM_UP_S + max(state.delay_s + state.jitter_s for state in states.values()))
        before = [flood.look() for flood in floods]
        time.sleep(max(map(window_s, states.values())))
        after = [flood.look() for flood in floods]
    finally:
        ended.set()
        if sender.ident is not None:
            sender.join()
        for flood in floods:
            flood.close()
    looks = zip(before, after, [flood.look() for flood in floods], strict=True)
    return {flood.link: flood.judge(*each) for flood, each in zip(floods, looks, strict=True)}


def _send(floods: Sequence[_Flood], ended: threading.Event) -> None:
    """Keep every link slightly more than full, in steps of a millisecond, until `ended` is set."""
    began = time.monotonic()
    while not ended.is_set():
        now = time.monotonic() - began
        behind = [flood.offer(now) for flood in floods]
        if not any(behind):
            time.sleep(FLOOD_STEP_S)


def flood_socket(netns: Path) -> socket.socket:
    """Open the non-blocking socket of a flood in a router's namespace.

    Packets in flight over the link count as in the sender's buffer, which must therefore hold rate × delay.
    """
    opened = inside(netns, udp_socket)
    opened.setblocking(False)
    opened.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, FLOOD_BUFFER_BYTES)
    return opened


def udp_socket() -> socket.socket:
    """Open a UDP socket over IPv4."""
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
