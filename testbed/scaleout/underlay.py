"""What lies beneath a link that is cut: the hosts' own network, which takes time that the link may not. Pure.

A packet over a cut link is held by its router for what the link declares, and then crosses the hosts' network, which
takes some time too. That is taken off: where 30 ms are declared over hosts 1 ms apart one way, the router holds it for
29. A link that declares less than the hosts' network takes cannot be cut there at all.

What is known is a round trip. Its half is taken for either way: asymmetry cannot be told from a clock's offset (that is
so for whoever measures from its two ends), so a one-way delay may be off by half of what the ways differ, and both
together are right. The least of some round trips is the path itself; what others took longer is queues and scheduling.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from testbed.link import LinkState, Queue
from testbed.scaleout.split.placing import Pair
from testbed.spec.topology import Link, Topology

#: What VXLAN puts around a packet: its own header of 8 bytes, UDP's of 8, IP's of 20, and the inner frame's Ethernet.
VXLAN_BYTES = 14 + 8 + 8 + 20
#: What an emulated interface has, where the hosts' network carries it inside of a tunnel, and what it has over one of
#: 1,500, as nearly all are: 1,500 inside of 1,500 is refused or fragments.
FULL_MTU = 1500
TUNNEL_MTU = FULL_MTU - VXLAN_BYTES


@dataclass(frozen=True, slots=True)
class BelowFloor:
    """A link that declares less delay than the hosts' network between its ends takes by itself; in seconds, one way."""

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
    """The hosts' network as it was measured: for each pair of hosts the least round trip in seconds, and the largest
    packet of IP that passes whole, in bytes."""

    round_trips: Mapping[Pair, float]
    mtus: Mapping[Pair, int]

    def floor_s(self, hosts: Pair) -> float:
        """One way between two hosts, as far as a round trip can tell; 0 on one and the same."""
        return self.round_trips[hosts] / 2 if len(hosts) > 1 else 0.0

    @property
    def mtu(self) -> int:
        """What every emulated interface is to have: the same on all, so that no path fragments."""
        return FULL_MTU if all(mtu >= FULL_MTU + VXLAN_BYTES for mtu in self.mtus.values()) else TUNNEL_MTU

    def barred(self, topologies: Iterable[Topology]) -> dict[Pair, frozenset[Pair]]:
        """For each physical pair of links, the pairs of hosts that are too far apart for it to be cut there."""
        found: dict[Pair, set[Pair]] = {}
        for topology in topologies:
            for link in topology.links.values():
                too_far = {hosts for hosts in self.round_trips if least_delay_s(link) < self.floor_s(hosts)}
                found.setdefault(frozenset((link.source, link.target)), set()).update(too_far)
        return {pair: frozenset(hosts) for pair, hosts in found.items() if hosts}

    def floors(self, host_of: Mapping[str, str], topology: Topology) -> dict[str, float]:
        """What is to be taken off the delay of each link that is cut, in seconds by its name."""
        hosts = {link.name: frozenset((host_of[link.source], host_of[link.target])) for link in topology.links.values()}
        return {name: self.floor_s(pair) for name, pair in hosts.items() if len(pair) > 1}

    def below(self, host_of: Mapping[str, str], topology: Topology) -> list[BelowFloor]:
        """Every cut link that declares less than its floor, in any row of its trace."""
        floors = self.floors(host_of, topology)
        found = []
        for name, floor_s in floors.items():
            link = topology.links[name]
            if (declared_s := least_delay_s(link)) < floor_s:
                hosts = frozenset((host_of[link.source], host_of[link.target]))
                found.append(BelowFloor(name, declared_s, hosts, floor_s))
        return found

    def cut_hosts(self, host_of: Mapping[str, str], topology: Topology) -> frozenset[Pair]:
        """The pairs of hosts that share a cut link."""
        between = (frozenset((host_of[link.source], host_of[link.target])) for link in topology.links.values())
        return frozenset(hosts for hosts in between if len(hosts) > 1)


def least_delay_s(link: Link) -> float:
    """The least delay that a link declares, over its trace."""
    rows = link.trace.rows if link.trace is not None else ()
    return min((row.over(link.state).delay_s for row in rows), default=link.state.delay_s)


def over_underlay(link: str, state: LinkState, floor_s: float) -> LinkState:
    """The state that a router is to enforce so that, with the way between the hosts, the link is as declared.

    The queue keeps its size, which follows from the delay that the link declares. ValueError for a state below the
    floor, which a link may come to by hand.
    """
    if state.delay_s < floor_s:
        raise ValueError(too_near(link, state.delay_s, floor_s))
    queue = Queue(state.queue_bytes, "bytes") if state.queue.unit == "bdp" else state.queue
    return replace(state, delay_s=state.delay_s - floor_s, queue=queue)


def too_near(link: str, delay_s: float, floor_s: float) -> str:
    """Why a link cannot have a delay."""
    return f"{link} cannot have {delay_s * 1e3:g} ms one way: its hosts are {floor_s * 1e3:.3g} ms apart"
