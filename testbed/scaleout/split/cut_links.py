"""Cut links, measured from outside while nobody uses them, by the two hosts of each.

The host where a link begins pings its round trip. The rate is that of a flood, counted by the kernel on the other host,
where the flood arrives, between two looks on that host's own clock: the hosts need no common clock.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.emulation.links.probe import (
    ETHERNET_BYTES,
    FLOOD_EXCESS,
    FLOOD_HEAD_PACKETS,
    FLOOD_PORT,
    FLOOD_STEP_S,
    FLOOD_WARM_UP_S,
    IP_UDP_BYTES,
    LOOKS,
    TURN_PACKETS,
    LinkFidelity,
    flood_socket,
    round_trip_errors,
    window_s,
)
from testbed.emulation.network.namespace import inside
from testbed.emulation.network.network import Network
from testbed.emulation.shaping.base import passes
from testbed.link import LinkState, link_ends, link_name

if TYPE_CHECKING:
    from testbed.scaleout.split.hosts import SplitHosts

#: A flood that offered less than this part of the link's rate did not fill the link.
OFFERED = 1.0
#: The seconds for which the flood goes on after the second look.
AFTER_S = 0.3


@dataclass(frozen=True, slots=True)
class FloodArrival:
    """The bytes of frames that had arrived at a link's end by the moment `at`, give or take half of `took_s`."""

    at: float
    took_s: float
    bytes: int


class CutLinks:
    """The ends of cut links on this host."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._sinks: dict[str, socket.socket] = {}

    def close(self) -> None:
        """Close all sinks."""
        with ExitStack() as stack:
            for sink in self._sinks.values():
                stack.callback(sink.close)
        self._sinks.clear()

    def round_trip_errors(self, states: Mapping[str, LinkState]) -> dict[str, float]:
        """Return the errors of the idle round trips of links that begin here, in seconds.

        Args:
            states: The states of the links and of the links back.
        """
        return round_trip_errors(self._network, self._network.share.own(states), states)

    def listen(self, link: str) -> None:
        """Open a sink for a flood over a link that ends here."""
        source, target = link_ends(link)
        address = str(self._network.addressing.next_hop(source, target))
        sink = inside(self._network.router(target).netns, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sink.bind((address, FLOOD_PORT))
        self._sinks[link] = sink

    def arrived(self, link: str) -> FloodArrival:
        """Count what has arrived over a link: the quickest of several looks."""
        return min((self._look(link) for _ in range(LOOKS)), key=lambda look: look.took_s)

    def ignore(self, link: str) -> None:
        """Close the link's sink."""
        self._sinks.pop(link).close()

    def flood(self, link: str, state: LinkState, seconds: float) -> float:
        """Offer a link that begins here a little more than it carries; return the offer relative to the link's rate."""
        source, target = link_ends(link)
        frame = self._network.share.mtu + ETHERNET_BYTES
        payload = bytes(frame - ETHERNET_BYTES - IP_UDP_BYTES)
        per_s = FLOOD_EXCESS * state.rate_bps / (1 - state.loss) / 8 / frame
        sent = 0
        with closing(flood_socket(self._network.router(source).netns)) as out:
            out.connect((str(self._network.addressing.next_hop(source, target)), FLOOD_PORT))
            began = time.monotonic()
            while (elapsed := time.monotonic() - began) < seconds:
                due = FLOOD_HEAD_PACKETS + int(elapsed * per_s)
                try:
                    for _ in range(min(due - sent, TURN_PACKETS)):
                        out.send(payload)
                        sent += 1
                except BlockingIOError:  # the whole buffer waits for the link, so the link lacks nothing
                    sent = due
                if sent >= due:
                    time.sleep(FLOOD_STEP_S)
        return sent * frame * 8 * (1 - state.loss) / seconds / state.rate_bps

    def _look(self, link: str) -> FloodArrival:
        source, target = link_ends(link)
        began = time.monotonic()
        size, packets = _received(self._network.router(target).pid, source)
        took_s = time.monotonic() - began
        # A tunnel's end counts packets without their Ethernet headers.
        return FloodArrival(began + took_s / 2, took_s, size + ETHERNET_BYTES * packets)


def _received(pid: int, interface: str) -> tuple[int, int]:
    """Return the bytes and packets that an interface in a process's namespace has received."""
    for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]:
        name, _, counters = line.partition(":")
        if name.strip() == interface:
            size, packets = counters.split()[:2]
            return int(size), int(packets)
    raise FileNotFoundError(interface)


def measure_cut_links(
    hosts: SplitHosts, host_of: Mapping[str, str], states: Mapping[str, LinkState], links: Iterable[str], mtu: int
) -> dict[str, LinkFidelity]:
    """Measure cut links from the holder of all hosts, one after another: each takes about two seconds."""
    links = [link for link in links if states[link].up]
    errors: dict[str, float] = {}
    asked = {name: states[name] for link in links for name in (link, _back(link)) if name in states}
    for found in hosts.each("cut.round_trip_errors", lambda _: (asked,)).values():
        errors |= found
    measured = {}
    for link in links:
        rate, resolution = _rate(hosts, host_of, link, states[link], mtu)
        measured[link] = LinkFidelity(rate, errors.get(link), resolution)
    return measured


def _rate(
    hosts: SplitHosts, host_of: Mapping[str, str], link: str, state: LinkState, mtu: int
) -> tuple[float | None, float]:
    """Return the relative error of a link's rate and its resolution.

    The error is None where the link passes nothing, or was not filled.
    """
    if not passes(state) or state.loss >= 1:
        return None, 0.0
    near, far = (host_of[site] for site in link_ends(link))
    window, warm_up_s = window_s(state), FLOOD_WARM_UP_S + state.delay_s + state.jitter_s
    hosts.call(far, "cut.listen", link)
    flood = hosts.hosts[near].submit("cut.flood", link, state, warm_up_s + window + AFTER_S)
    time.sleep(warm_up_s)
    before = hosts.call(far, "cut.arrived", link)
    time.sleep(window)
    after = hosts.call(far, "cut.arrived", link)
    offered = flood.result()
    hosts.call(far, "cut.ignore", link)
    time.sleep(state.queue_bytes * 8 / state.rate_bps + state.delay_s)  # until the queue is empty
    seconds = after.at - before.at
    expected = state.rate_bps / 8 * seconds
    unsure_s = state.jitter_s + (before.took_s + after.took_s) / 2
    error = (after.bytes - before.bytes) / expected - 1
    return (error if offered >= OFFERED else None), (mtu + ETHERNET_BYTES) / expected + unsure_s / seconds


def _back(link: str) -> str:
    source, target = link_ends(link)
    return link_name(target, source)
