"""A link that is cut, measured from outside while nobody uses it: each host does what its end can.

The round trip is pinged from where the link begins. Its rate is that of a flood, counted by the kernel where it
arrives, on the other host, between two looks by that host's own clock: so the two need no common one.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from testbed.emulation.links.probe import (
    ETHERNET_BYTES,
    FLOOD_EXCESS,
    FLOOD_HEAD_PACKETS,
    FLOOD_PORT,
    FLOOD_STEP_S,
    IP_UDP_BYTES,
    TURN_PACKETS,
    flood_socket,
    round_trip_errors,
)
from testbed.emulation.network.namespace import inside
from testbed.emulation.network.network import Network
from testbed.link import LinkState, link_ends


@dataclass(frozen=True, slots=True)
class FloodArrival:
    """What had arrived at a link's end by the moment `at`, give or take half of `took_s`: bytes of frames."""

    at: float
    took_s: float
    bytes: int


class CutLinks:
    """The ends here of links that are cut."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._sinks: dict[str, socket.socket] = {}

    def close(self) -> None:
        """Let go of what was opened."""
        with ExitStack() as stack:
            for sink in self._sinks.values():
                stack.callback(sink.close)
        self._sinks.clear()

    def round_trip_errors(self, states: Mapping[str, LinkState]) -> dict[str, float]:
        """By how many seconds the idle round trips over links that begin here are off; `states` are of both ways."""
        own = self._network.share.own(states)
        return round_trip_errors(self._network, own, states)

    def listen(self, link: str) -> None:
        """Take a flood over a link that ends here, and count it."""
        source, target = link_ends(link)
        address = str(self._network.addressing.next_hop(source, target))
        sink = inside(self._network.router(target).netns, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sink.bind((address, FLOOD_PORT))
        self._sinks[link] = sink

    def arrived(self, link: str) -> FloodArrival:
        """The least held up of some looks."""
        return min((self._look(link) for _ in range(4)), key=lambda look: look.took_s)

    def ignore(self, link: str) -> None:
        """Take no flood over it any more."""
        self._sinks.pop(link).close()

    def flood(self, link: str, state: LinkState, seconds: float) -> float:
        """Offer a link that begins here a little more than it carries; what was offered, relative to its rate."""
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
                except BlockingIOError:  # all of the buffer waits for the link, so nothing is lacking
                    sent = due
                if sent >= due:
                    time.sleep(FLOOD_STEP_S)
        return sent * frame * 8 * (1 - state.loss) / seconds / state.rate_bps

    def _look(self, link: str) -> FloodArrival:
        source, target = link_ends(link)
        began = time.monotonic()
        size, packets = _counted(self._network.router(target).pid, source)
        took_s = time.monotonic() - began
        # A tunnel's end counts packets after it took their Ethernet headers off.
        return FloodArrival(began + took_s / 2, took_s, size + ETHERNET_BYTES * packets)


def _counted(pid: int, interface: str) -> tuple[int, int]:
    """Bytes and packets that an interface has received."""
    for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]:
        name, _, counters = line.partition(":")
        if name.strip() == interface:
            size, packets = counters.split()[:2]
            return int(size), int(packets)
    raise FileNotFoundError(interface)
