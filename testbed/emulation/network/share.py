"""The part of a network that is on this host, where the network is split over several.

    host north                                                 host south
    paris-r (namespace)                                        tokyo-r (namespace)
    +-----------------+                                        +-----------------+
    |          tokyo  |--- VXLAN, UDP 14789, hosts' network ---|  paris          |
    +-----------------+                                        +-----------------+
             shaped: paris->tokyo                                shaped: tokyo->paris

A host has whole sites: routers, switches, workers. A link whose two sites are on one host is a veth, as ever; one that
is cut ends here in a tunnel's end, which lies in the router's namespace, while its UDP socket stays in the host's own.
It is shaped like any other, where packets leave the router. There they are whole inner frames, and are counted as such
by either backend: what the tunnel puts around them comes after the queueing disciplines, and after netfilter.

Every host hands out addresses for the whole network in the same order, so all know where each router and worker is.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.emulation.network import device
from testbed.emulation.network.netlink import Netlink
from testbed.emulation.network.node import Interface, mac_of
from testbed.link import link_ends, link_name

if TYPE_CHECKING:
    from testbed.emulation.network.network import Network
    from testbed.emulation.network.wiring import Wiring
    from testbed.spec.topology import Topology

#: The UDP port of our tunnels. VXLAN's own is 4789: another one may use that, and each is to stop at its own.
TUNNEL_PORT = 14789

#: A network's tunnels have numbers of 24 bits: 12 of its name, and one for each physical pair.
PAIRS_AT_MOST = 1 << 12

#: This process's own network namespace: the host's.
OWN = Path("/proc/self/ns/net")


@dataclass(frozen=True)
class Share:
    """What of a network is on this host; by default all of it.

    `network` is the name of the whole. `host_of` maps every site that it may ever have to its host, `addresses` each
    host to its address on the hosts' network. `mtu` is that of all emulated interfaces, on every host. `underlay` is
    the namespace that is the host's own.
    """

    host: str = ""
    network: str = ""
    host_of: Mapping[str, str] = field(default_factory=dict)
    addresses: Mapping[str, IPv4Address] = field(default_factory=dict)
    mtu: int = 1500
    underlay: Path = OWN

    def has(self, site: str) -> bool:
        """Whether a site is here."""
        return self.host_of.get(site, self.host) == self.host

    def has_link(self, link: str) -> bool:
        """Whether a directed link begins here, and is shaped here."""
        return self.has(link_ends(link)[0])

    def own(self, links: Iterable[str]) -> list[str]:
        """Those of some links that begin here."""
        return [link for link in links if self.has_link(link)]


WHOLE = Share()


def tunnel_number(network: str, pair_number: int) -> int:
    """The VXLAN network identifier of a physical pair. ValueError for more pairs than a network has numbers for.

    Two networks between the same hosts have the same with a chance of 1 in 4,096; the kernel then refuses the second.
    """
    if pair_number >= PAIRS_AT_MOST:
        raise ValueError(f"a network over several hosts can have at most {PAIRS_AT_MOST} pairs of links")
    return (zlib.crc32(network.encode()) & 0xFFF) << 12 | pair_number


def lay_tunnel(network: Network, topology: Topology, sites: tuple[str, str], wiring: Wiring) -> None:
    """The end here of a physical pair that is cut: `sites` are the one here and the one on another host.

    MAC addresses follow from the ends' addresses, so that neither has to ask. RuntimeError where the kernel makes none.
    """
    (near, far), pair, share = sites, frozenset(sites), network.share
    addresses = (network.addressing.wan(near, far), network.addressing.wan(far, near))
    number = tunnel_number(share.network, network.addressing.number(pair))
    here, there = share.addresses[share.host], share.addresses[share.host_of[far]]
    router, mac = network.router(near), mac_of(addresses[0])
    host = Netlink(share.underlay)
    try:
        host.apply(device.vxlan(far, mac, router.pid, number, here, there, TUNNEL_PORT))
    except OSError as error:
        raise RuntimeError(
            f"the tunnel from {share.host} to {share.host_of[far]} (VXLAN {number}, {here} to {there}, UDP port "
            f"{TUNNEL_PORT}) could not be created: {error.strerror}; run `modprobe vxlan`, and see that no other "
            "network of this name is up between these hosts"
        ) from error
    finally:
        host.close()
    network.pairs[pair] = end = Interface(far, node=router, moveIntfFn=lambda *_: None, mac=mac)
    name = link_name(near, far)
    wiring.end_tunnel(end, addresses, name, network.links_in_force.add(topology.links[name]))
