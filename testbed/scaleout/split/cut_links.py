"""Cut links: the part of their delay that the hosts' own network takes, and their measurement before the run.

    declared 30 ms  ->  held by the router 29 ms  +  hosts' network 1 ms

A link that declares less delay than the hosts' network takes can't be cut there. All other code uses the declared
states; only the shaper that enforces them gets the shorter delay.

The one-way delay, the floor, is half of a measured round trip. Nobody at the two ends can tell asymmetry from a clock's
offset, so a one-way delay may be off by half of the two directions' difference, while the round trip is right. The
least of several round trips is the path's own; the time beyond it is queues and scheduling.

Cut links are measured from outside while nobody uses them, by the two hosts of each. The host where a link begins pings
its round trip. The rate is that of a flood, counted by the kernel on the other host, where the flood arrives, between
two readings of that host's own clock: the hosts need no common clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
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
    FloodLook,
    LinkFidelity,
    flood_socket,
    link_back,
    rate_error,
    round_trip_errors,
    udp_socket,
    window_s,
)
from testbed.emulation.network.namespace import inside
from testbed.emulation.network.network import Network
from testbed.emulation.network.node import received
from testbed.emulation.shaping.base import Applied, FutureStates, LinkCounters, Port, Shaper, ShapingError, passes
from testbed.link import LinkState, link_ends
from testbed.spec.topology import Link, Topology

if TYPE_CHECKING:
    from testbed.scaleout.split.hosts import SplitHosts

#: VXLAN's overhead in bytes: the inner frame's Ethernet header, VXLAN's own, UDP's and IP's.
VXLAN_BYTES = 14 + 8 + 8 + 20
#: The MTU of emulated interfaces where the hosts' network carries 1,500 bytes inside a tunnel, and the one over a
#: network of 1,500, as nearly all are: 1,500 inside 1,500 would be refused or fragmented.
FULL_MTU = 1500
TUNNEL_MTU = FULL_MTU - VXLAN_BYTES

#: How far below the floor a declared delay may be, in seconds. Round trips of one path vary by 0.02 to 0.05 ms, so 1.99
#: ms are not refused where 2 ms were measured. A link that is slower by this much is 0.2 ms off there and back, where
#: the verdict tolerates 0.5 ms.
FLOOR_TOLERANCE_S = 100e-6

#: A flood that offered less than this part of the link's rate did not fill the link.
OFFERED = 1.0
#: The seconds for which the flood goes on after the second look.
AFTER_S = 0.3

#: Two sites, or two hosts, in either order.
Pair = frozenset[str]


# The floor, pure ------------------------------------------------------------------------------------------------------


def is_below_floor(delay_s: float, floor_s: float) -> bool:
    """Return whether a declared delay is less than the hosts' network takes, by more than FLOOR_TOLERANCE_S."""
    return delay_s < floor_s - FLOOR_TOLERANCE_S


@dataclass(frozen=True)
class HostsNetwork:
    """The measured network between hosts."""

    #: The least round trip of each pair of hosts, in seconds.
    round_trips: Mapping[Pair, float]
    #: The largest IP packet that passes unfragmented between each pair of hosts, in bytes.
    mtus: Mapping[Pair, int]

    def floor_s(self, hosts: Pair) -> float:
        """Return the one-way delay between two hosts, half of their round trip; 0 for one and the same host."""
        return self.round_trips[hosts] / 2 if len(hosts) > 1 else 0.0

    @property
    def mtu(self) -> int:
        """The MTU of every emulated interface: the same on all, so that no path fragments."""
        least = min(self.mtus.values(), default=FULL_MTU + VXLAN_BYTES)
        return FULL_MTU if least >= FULL_MTU + VXLAN_BYTES else min(TUNNEL_MTU, least - VXLAN_BYTES)

    def barred(self, topologies: Iterable[Topology]) -> dict[Pair, frozenset[Pair]]:
        """Return, for each pair of sites, the pairs of hosts that are too far apart for its links to be cut there."""
        found: dict[Pair, set[Pair]] = {}
        for topology in topologies:
            for link in topology.links.values():
                delay_s = least_delay_s(link)
                too_far = {hosts for hosts in self.round_trips if is_below_floor(delay_s, self.floor_s(hosts))}
                found.setdefault(frozenset((link.source, link.target)), set()).update(too_far)
        return {pair: frozenset(hosts) for pair, hosts in found.items() if hosts}

    def below(self, host_of: Mapping[str, str], topology: Topology) -> dict[str, str]:
        """Return each cut link that declares less than its floor, in any row of its trace, with the two in words."""
        found = {}
        for link, hosts in cut_hosts(host_of, topology.links).items():
            delay_s, floor_s = least_delay_s(topology.links[link]), self.floor_s(hosts)
            if is_below_floor(delay_s, floor_s):
                found[link] = (
                    f"{link} declares {delay_s * 1e3:g} ms one way, but {' and '.join(sorted(hosts))} are "
                    f"{floor_s * 1e3:.3g} ms apart one way (half of their least round trip)"
                )
        return found


def cut_hosts(host_of: Mapping[str, str], links: Iterable[str]) -> dict[str, Pair]:
    """Return the two hosts of each cut link among directed links, by the link's name."""
    hosts = {link: frozenset(host_of[site] for site in link_ends(link)) for link in links}
    return {name: pair for name, pair in hosts.items() if len(pair) > 1}


def least_delay_s(link: Link) -> float:
    """Return the least one-way delay, in seconds, that a link declares in any row of its trace."""
    rows = link.trace.rows if link.trace is not None else ()
    return min((row.over(link.state).delay_s for row in rows), default=link.state.delay_s)


def check_delay(link: str, delay_s: float, floor_s: float) -> None:
    """Raise ShapingError for a delay below the link's floor."""
    if is_below_floor(delay_s, floor_s):
        raise ShapingError(
            f"{link} cannot have {delay_s * 1e3:g} ms one way: its hosts are {floor_s * 1e3:.3g} ms apart",
            rule="below-floor",
            link=link,
            given=delay_s,
        )


def over_underlay(link: str, state: LinkState, floor_s: float) -> LinkState:
    """Return the state for the router to enforce, so that together with the hosts' network the link is as declared.

    The queue keeps the size that follows from the declared delay.

    Raises:
        ShapingError: The delay is below the floor.
    """
    check_delay(link, state.delay_s, floor_s)
    queue = state.queue
    if queue.unit == "bdp":
        queue = replace(queue, amount=state.queue_bytes, unit="bytes")
    return replace(state, delay_s=max(state.delay_s - floor_s, 0.0), queue=queue)


class TunnelShaper(Shaper):
    """Shapes links by an inner shaper, which gets each delay less the part that the hosts' network takes: the floor.

    Raises ShapingError for a state below the floor: such a link would silently be slower than asked for.
    """

    def __init__(self, inner: Shaper, floor_s: Callable[[str], float]) -> None:
        """Wrap `inner`; `floor_s` returns a link's floor, 0 for a link that is not cut."""
        self.name, self.most_jitter_s = inner.name, inner.most_jitter_s
        self._inner = inner
        self._floor_s = floor_s

    @property
    def realtime(self) -> bool:
        """True if the inner shaper's process has real-time priority."""
        return self._inner.realtime

    def attach(self, ports: Mapping[Port, LinkState]) -> None:
        """Attach ports in the states that their routers enforce."""
        self._inner.attach({port: self._enforced(port.link, state) for port, state in ports.items()})

    def apply(self, states: Mapping[str, LinkState], coming: Mapping[str, FutureStates] | None = None) -> None:
        """Change links to the states that their routers enforce."""
        enforced = {link: self._enforced(link, state) for link, state in states.items()}
        self._inner.apply(enforced, None if coming is None else self._enforced_later(coming))

    def expect(self, coming: Mapping[str, FutureStates]) -> None:
        """Append future states of links to those queued, each changed to the state that the link's router enforces."""
        self._inner.expect(self._enforced_later(coming))

    def applied(self) -> list[Applied]:
        """Return the future states that took effect in the inner shaper since the last call."""
        return self._inner.applied()

    def detach(self, link: str) -> None:
        """Detach a link from the inner shaper."""
        self._inner.detach(link)

    def counters(self) -> dict[str, LinkCounters]:
        """Return the inner shaper's totals of every attached link."""
        return self._inner.counters()

    def failure(self) -> str | None:
        """Return why the inner shaper's links are dead, or None if all is well."""
        return self._inner.failure()

    def close(self) -> None:
        """Close the inner shaper."""
        self._inner.close()

    def _enforced_later(self, coming: Mapping[str, FutureStates]) -> dict[str, FutureStates]:
        return {
            link: [(due_s, self._enforced(link, state)) for due_s, state in states] for link, states in coming.items()
        }

    def _enforced(self, link: str, state: LinkState) -> LinkState:
        floor_s = self._floor_s(link)
        return over_underlay(link, state, floor_s) if floor_s else state


# Measurement by the two hosts of a link -------------------------------------------------------------------------------


class CutLinks:
    """The ends of this host's cut links (links to other hosts), with their measurement by floods."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def round_trip_errors(self, states: Mapping[str, LinkState]) -> dict[str, float]:
        """Return the errors in seconds of the idle round trips of links that begin here, by the states of both ways."""
        return round_trip_errors(self._network, self._network.share.own(states), states)

    def arrivals(self, link: str, warm_up_s: float, seconds: float) -> tuple[FloodLook, FloodLook]:
        """Return the bytes arrived over a link that ends here, `warm_up_s` into a flood and again `seconds` later."""
        source, target = link_ends(link)
        with closing(inside(self._network.router(target).netns, udp_socket)) as sink:
            sink.bind((str(self._network.addressing.next_hop(source, target)), FLOOD_PORT))
            time.sleep(warm_up_s)
            before = self._quickest_look(link)
            time.sleep(seconds)
            return before, self._quickest_look(link)

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
                except BlockingIOError:  # the whole buffer waits for the link, so the link is full
                    sent = due
                except ConnectionRefusedError:  # the other host does not count yet, or no longer counts
                    continue
                if sent >= due:
                    time.sleep(FLOOD_STEP_S)
        return sent * frame * 8 * (1 - state.loss) / seconds / state.rate_bps

    def _quickest_look(self, link: str) -> FloodLook:
        """Return the bytes arrived over a link so far, by the quickest of several reads: its time is the most exact."""
        return min((self._look(link) for _ in range(LOOKS)), key=lambda look: look.took_s)

    def _look(self, link: str) -> FloodLook:
        source, target = link_ends(link)
        began = time.monotonic()
        size, packets = received(self._network.router(target).pid)[source]
        took_s = time.monotonic() - began
        # A tunnel's end counts packets without their Ethernet headers.
        return FloodLook(began + took_s / 2, took_s, size + ETHERNET_BYTES * packets)


def measure_cut_links(
    hosts: SplitHosts, host_of: Mapping[str, str], states: Mapping[str, LinkState], links: Iterable[str], mtu: int
) -> dict[str, LinkFidelity]:
    """Return the measured errors of cut links by name, measured one after another: each takes about two seconds."""
    links = [link for link in links if states[link].up]
    asked = {name: states[name] for link in links for name in (link, link_back(link)) if name in states}
    errors: dict[str, float] = hosts.merged("cut.round_trip_errors", lambda _: (asked,))
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
    flood = hosts.hosts[near].submit("cut.flood", link, state, warm_up_s + window + AFTER_S)
    before, after = hosts.call(far, "cut.arrivals", link, warm_up_s, window)
    offered = flood.result()
    time.sleep(state.queue_bytes * 8 / state.rate_bps + state.delay_s)  # until the queue is empty
    error, resolution = rate_error(state, before, after, mtu + ETHERNET_BYTES)
    return (error if offered >= OFFERED else None), resolution
