"""The hosts' own network beneath a cut link: the delay that it takes by itself, which the link's router leaves out.

    declared 30 ms  ->  held by the router 29 ms  +  hosts' network 1 ms

A link that declares less than the hosts' network takes can't be cut there. Everything that speaks of links speaks of
declared states; only the shaper that does the work is told less.

The one-way delay, the floor, is half of a measured round trip. Nobody at the two ends can tell asymmetry from a clock's
offset, so a one-way delay may be off by half of the two directions' difference, while the round trip is right. The
least of several round trips is the path's own; the time beyond it is queues and scheduling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from testbed.emulation.shaping.base import Applied, FutureStates, LinkCounters, Port, Shaper, ShapingError
from testbed.link import LinkState, Queue
from testbed.spec.topology import Link, Topology

#: VXLAN's overhead in bytes: the inner frame's Ethernet header, VXLAN's own, UDP's and IP's.
VXLAN_BYTES = 14 + 8 + 8 + 20
#: The MTU of emulated interfaces where the hosts' network carries 1,500 bytes inside a tunnel, and the one over a
#: network of 1,500, as nearly all are: 1,500 inside 1,500 would be refused or fragmented.
FULL_MTU = 1500
TUNNEL_MTU = FULL_MTU - VXLAN_BYTES

#: Two sites, or two hosts, in either order.
Pair = frozenset[str]


@dataclass(frozen=True, slots=True)
class BelowFloor:
    """A link that declares less one-way delay than the hosts' network between its ends takes, in seconds."""

    link: str
    delay_s: float
    hosts: Pair
    floor_s: float

    def __str__(self) -> str:
        names = " and ".join(sorted(self.hosts))
        return (
            f"{self.link} declares {self.delay_s * 1e3:g} ms one way, but {names} are {self.floor_s * 1e3:.3g} ms "
            "apart one way (half of their least round trip)"
        )


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
        return FULL_MTU if all(mtu >= FULL_MTU + VXLAN_BYTES for mtu in self.mtus.values()) else TUNNEL_MTU

    def barred(self, topologies: Iterable[Topology]) -> dict[Pair, frozenset[Pair]]:
        """Return, for each pair of sites, the pairs of hosts that are too far apart for its links to be cut there."""
        found: dict[Pair, set[Pair]] = {}
        for topology in topologies:
            for link in topology.links.values():
                too_far = {hosts for hosts in self.round_trips if least_delay_s(link) < self.floor_s(hosts)}
                found.setdefault(frozenset((link.source, link.target)), set()).update(too_far)
        return {pair: frozenset(hosts) for pair, hosts in found.items() if hosts}

    def below(self, host_of: Mapping[str, str], topology: Topology) -> list[BelowFloor]:
        """Return every cut link that declares less than its floor, in any row of its trace."""
        found = []
        for name, hosts in cut_hosts(host_of, topology).items():
            if (declared_s := least_delay_s(topology.links[name])) < (floor_s := self.floor_s(hosts)):
                found.append(BelowFloor(name, declared_s, hosts, floor_s))
        return found


def cut_hosts(host_of: Mapping[str, str], topology: Topology) -> dict[str, Pair]:
    """Return the two hosts of each cut link, by the link's name."""
    hosts = {link.name: frozenset((host_of[link.source], host_of[link.target])) for link in topology.links.values()}
    return {name: pair for name, pair in hosts.items() if len(pair) > 1}


def least_delay_s(link: Link) -> float:
    """Return the least delay that a link declares, over its trace."""
    rows = link.trace.rows if link.trace is not None else ()
    return min((row.over(link.state).delay_s for row in rows), default=link.state.delay_s)


class TunnelShaper(Shaper):
    """Passes each state on to another shaper, less the link's floor.

    Raises ShapingError for a state below the floor: such a link would silently be slower than asked for.
    """

    def __init__(self, inner: Shaper, floor_s: Callable[[str], float]) -> None:
        """Wrap `inner`; `floor_s` returns a link's floor, 0 for a link that is not cut."""
        self._inner = inner
        self._floor_s = floor_s

    @property
    def name(self) -> str:  # type: ignore[override]
        """The inner shaper's name."""
        return self._inner.name

    @property
    def realtime(self) -> bool | None:
        return self._inner.realtime

    def attach(self, ports: Mapping[Port, LinkState]) -> None:
        self._inner.attach({port: self._enforced(port.link, state) for port, state in ports.items()})

    def apply(self, states: Mapping[str, LinkState], coming: Mapping[str, FutureStates] | None = None) -> None:
        enforced = {link: self._enforced(link, state) for link, state in states.items()}
        self._inner.apply(enforced, None if coming is None else self._enforced_later(coming))

    def expect(self, coming: Mapping[str, FutureStates]) -> None:
        self._inner.expect(self._enforced_later(coming))

    def applied(self) -> list[Applied]:
        return self._inner.applied()

    def detach(self, link: str) -> None:
        self._inner.detach(link)

    def counters(self) -> dict[str, LinkCounters]:
        return self._inner.counters()

    def failure(self) -> str | None:
        return self._inner.failure()

    def close(self) -> None:
        self._inner.close()

    def _enforced_later(self, coming: Mapping[str, FutureStates]) -> dict[str, FutureStates]:
        return {
            link: [(due_s, self._enforced(link, state)) for due_s, state in states] for link, states in coming.items()
        }

    def _enforced(self, link: str, state: LinkState) -> LinkState:
        floor_s = self._floor_s(link)
        return over_underlay(link, state, floor_s) if floor_s else state


def over_underlay(link: str, state: LinkState, floor_s: float) -> LinkState:
    """Return the state for the router to enforce, so that together with the hosts' network the link is as declared.

    The queue keeps the size that follows from the declared delay.

    Raises:
        ShapingError: The delay is below the floor, which a change by hand may ask for.
    """
    check_delay(link, state.delay_s, floor_s)
    queue = Queue(state.queue_bytes, "bytes") if state.queue.unit == "bdp" else state.queue
    return replace(state, delay_s=state.delay_s - floor_s, queue=queue)


def check_delay(link: str, delay_s: float, floor_s: float) -> None:
    """Raise ShapingError for a delay below the link's floor."""
    if delay_s < floor_s:
        raise ShapingError(
            f"{link} cannot have {delay_s * 1e3:g} ms one way: its hosts are {floor_s * 1e3:.3g} ms apart",
            rule="below-floor",
            link=link,
            given=delay_s,
        )
