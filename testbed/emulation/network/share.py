"""The part of a network on this host, if the network is split over several hosts.

    host north                                                 host south
    paris-r (namespace)                                        tokyo-r (namespace)
    +-----------------+                                        +-----------------+
    |          tokyo  |--- VXLAN, UDP 14789, hosts' network ---|  paris          |
    +-----------------+                                        +-----------------+
             shaped: paris->tokyo                                shaped: tokyo->paris

A host has whole sites: routers, switches, workers. A link between two sites of one host is a veth, as usual. A link
between hosts ends in a VXLAN tunnel, whose device lies in the router's namespace and whose UDP socket stays in the
host's own namespace. The link is shaped like any other, where packets leave the router. There they are whole inner
frames and are counted as such by either backend: the tunnel adds its headers after the queueing disciplines and after
netfilter.

Every host assigns addresses for the whole network in the same order, so all hosts agree on them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.emulation.errors import EmulationError
from testbed.emulation.network import device
from testbed.emulation.network.netlink import Netlink
from testbed.link import link_ends, link_name

if TYPE_CHECKING:
    from testbed.emulation.network.network import Network
    from testbed.emulation.network.wiring import Wiring
    from testbed.spec.topology import Topology

#: The UDP port of our tunnels. VXLAN's own port is 4789, which another program may use.
TUNNEL_PORT = 14789

#: A tunnel's number has 24 bits: 12 from the network's name, 12 for the physical pair.
PAIRS_AT_MOST = 1 << 12

#: The network namespace of this process, which is the host's.
OWN = Path("/proc/self/ns/net")


@dataclass(frozen=True)
class Share:
    """The part of a network that is on this host; by default all of it.

    Attributes:
        host: This host.
        network: The name of the whole network.
        host_of: The host of every site that the network may ever have.
        addresses: Each host's address on the hosts' network.
        mtu: The MTU of all emulated interfaces, on every host.
        underlay: The host's own network namespace.
    """

    host: str = ""
    network: str = ""
    host_of: Mapping[str, str] = field(default_factory=dict)
    addresses: Mapping[str, IPv4Address] = field(default_factory=dict)
    mtu: int = 1500
    underlay: Path = OWN

    def has(self, site: str) -> bool:
        """Return whether a site is on this host."""
        return self.host_of.get(site, self.host) == self.host

    def has_link(self, link: str) -> bool:
        """Return whether a directed link begins, and is shaped, on this host."""
        return self.has(link_ends(link)[0])

    def own(self, links: Iterable[str]) -> list[str]:
        """Return the links that begin on this host."""
        return [link for link in links if self.has_link(link)]


WHOLE = Share()


def tunnel_number(network: str, pair_number: int) -> int:
    """Return the VXLAN network identifier of a physical pair.

    Two networks between the same hosts share identifiers with a chance of 1 in 4,096; the kernel then refuses the
    second.

    Raises:
        ValueError: The network has more pairs than numbers.
    """
    if pair_number >= PAIRS_AT_MOST:
        raise ValueError(f"a network over several hosts can have at most {PAIRS_AT_MOST} pairs of links")
    return (zlib.crc32(network.encode()) & 0xFFF) << 12 | pair_number


def lay_tunnel(network: Network, topology: Topology, sites: tuple[str, str], wiring: Wiring) -> None:
    """Create this host's end of a physical pair between hosts. `sites` are the one here and the one on the other host.

    MAC addresses are derived from the ends' IP addresses, so neither host has to ask the other.

    Raises:
        EmulationError: The kernel refused the tunnel.
    """
    from testbed.emulation.network.node import Interface, mac_of  # needs Mininet, which records of runs do without

    (near, far), pair, share = sites, frozenset(sites), network.share
    addresses = (network.addressing.wan(near, far), network.addressing.wan(far, near))
    number = tunnel_number(share.network, network.addressing.number(pair))
    here, there = share.addresses[share.host], share.addresses[share.host_of[far]]
    router, mac = network.router(near), mac_of(addresses[0])
    host = Netlink(share.underlay)
    try:
        host.apply(device.vxlan(far, mac, router.pid, number, here, there, TUNNEL_PORT))
    except OSError as error:
        raise EmulationError(
            f"the tunnel from {share.host} to {share.host_of[far]} (VXLAN {number}, {here} to {there}, UDP port "
            f"{TUNNEL_PORT}) could not be created: {error.strerror}; run `modprobe vxlan`, and see that no other "
            "network of this name is up between these hosts"
        ) from error
    finally:
        host.close()
    network.pairs[pair] = end = Interface(far, node=router, moveIntfFn=lambda *_: None, mac=mac)
    name = link_name(near, far)
    wiring.end_tunnel(end, addresses, name, network.links_in_force.add(topology.links[name]))
