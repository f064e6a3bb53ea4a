"""Wiring of nodes into a WAN: a site's router, workers plugged in, routers joined by shaped links.

Wires are laid one by one and brought up together, because shaping one port takes as long as shaping all of a router's.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path

from testbed.emulation.errors import EmulationError
from testbed.emulation.network import device
from testbed.emulation.network.node import Interface, NamespaceNode, Router, Veth, mac_of
from testbed.emulation.network.switch import DEVICE, SWITCHES
from testbed.emulation.shaping.base import Port, Shaper, distorted_by_offload
from testbed.emulation.shaping.tc import limit_rate
from testbed.link import LinkState, Queue
from testbed.spec.topology import Lan, Link, SwitchName

#: Settings of a router's namespace. IPv6 is off, because nothing here uses it and its own packets would count as
#: traffic. Reverse-path checks are off, because they would drop packets where routes differ by direction.
ROUTER_SETTINGS = (
    "net.ipv4.ip_forward=1",
    "net.ipv4.conf.all.rp_filter=0",
    "net.ipv4.conf.default.rp_filter=0",
    "net.ipv6.conf.all.disable_ipv6=1",
    "net.ipv6.conf.default.disable_ipv6=1",
)
#: The router answers ARP for a site's workers, and sends no redirects for packets between them.
LAN_SETTINGS = (
    f"net.ipv4.conf.{DEVICE}.proxy_arp_pvlan=1",
    f"net.ipv4.neigh.{DEVICE}.proxy_delay=0",
    f"net.ipv4.conf.{DEVICE}.send_redirects=0",
    "net.ipv4.conf.all.send_redirects=0",
)
#: A setting of hosts, if the kernel has it (since 5.18): a super-packet is what a flow sends in a millisecond, however
#: short its round trip. Otherwise TCP fills super-packets of up to 64 KiB if the round trip is below 0.5 ms, as on
#: links without delay. Over 10 Mbit/s they had 16 to 48 KiB, and each link on the way waits for the last byte (13 to 39
#: ms), where a real one forwards the first frame after 1.2 ms. Measured: BBR's mean round trip fell from 30 to 17 ms.
SHORT_SUPER_PACKETS = ("net.ipv4.tcp_tso_rtt_log=0",) if Path("/proc/sys/net/ipv4/tcp_tso_rtt_log").exists() else ()

#: Settings of hosts. The minimum round trip is remembered for ten seconds instead of five minutes, so that it follows a
#: network swap.
HOST_SETTINGS = (
    "net.ipv6.conf.all.disable_ipv6=1",
    "net.ipv6.conf.default.disable_ipv6=1",
    "net.ipv4.tcp_min_rtt_wlen=10",
    # The library's own timeout decides how long a connection outlives an outage, not a count of retransmissions.
    "net.ipv4.tcp_retries2=255",
    # Packets begin with the most hops that there are: over 63 routers, those with the usual 64 ended on the way.
    "net.ipv4.ip_default_ttl=255",
    *SHORT_SUPER_PACKETS,
)
#: Turns off all ways of sending super-packets, including those of UDP (which QUIC uses), and of receiving them.
SINGLE_FRAMES = ("ethtool", "-K", "eth0", "tso", "off", "gso", "off", "tx-udp-segmentation", "off", "gro", "off")

#: Makes frames leave with their checksums filled in; a device then has nothing to segment either.
WHOLE_FRAMES = ("ethtool", "-K", "eth0", "tx", "off")

#: The default MTU of every interface.
ETHERNET_MTU = 1500

#: The index of every namespace's `lo`.
LOOPBACK = 1
EVERYWHERE = IPv4Network("0.0.0.0/0")

#: The queue of a switch port: a megabyte, 8 ms at 1 Gbit/s, as shallow data-centre switches have.
LAN_QUEUE = Queue(1e6, "bytes")


def set_up_router(router: Router, gateway: IPv4Interface, switch: SwitchName, mtu: int = ETHERNET_MTU) -> None:
    """Make a namespace forward, and create its site's switch with the router's address. Raises SwitchError."""
    router.configure(ROUTER_SETTINGS)
    router.netlink.apply(device.up(LOOPBACK))
    # A switch without a MAC address of its own takes the smallest one of its ports. A worker that joins or leaves would
    # change it, and the others would send to the old one until their ARP entry expires, half a minute later.
    router.switch = SWITCHES[switch](router.netns, router.netlink, mac_of(gateway), router.labels)
    router.configure(LAN_SETTINGS)
    # Port -1 comes before all other interfaces (a Topo counts from 0), so Mininet takes this address, which others can
    # reach, as the router's own.
    lan = Interface(DEVICE, node=router, port=-1, moveIntfFn=_leave_in_place)
    lan.setIP(str(gateway))
    if mtu != ETHERNET_MTU:
        lan.carry(mtu)
    lan.up()


def set_route(router: Router, lan: IPv4Network, hop: IPv4Address) -> None:
    """Send packets for a site's LAN to a neighbour, replacing the earlier route.

    The router's own packets carry its LAN address, because no other site has a route to the addresses of WAN links.
    """
    router.netlink.apply(device.route(lan, hop, IPv4Address(router.IP())))


class Wiring:
    """Wires between nodes that are being laid. They stay down until `bring_up` has shaped all of them in one batch."""

    def __init__(self, shaper: Shaper, mtu: int = ETHERNET_MTU) -> None:
        """Begin to lay wires whose interfaces have this MTU."""
        self.shaper = shaper
        self._mtu = mtu
        self._ports: dict[Port, LinkState] = {}
        self._finish: list[Callable[[], None]] = []

    def plug_in(self, wire: Veth, name: str, address: IPv4Interface, gateway: IPv4Interface, lan: Lan) -> None:
        """Turn a wire from a router to a worker into the access link `name`."""
        router, host, interface = wire.intf1.node, wire.intf2.node, wire.intf2
        host.configure(HOST_SETTINGS)
        self._set_mtu(wire.intf1, interface)
        router.switch.plug(wire.intf1.name)
        if not router.switch.offload:
            _run(host, WHOLE_FRAMES)
        # The MAC address follows from the address, because the router still remembers the previous worker's.
        interface.mac = mac_of(address)
        host.netlink.apply(device.mac(interface.index, interface.mac), limit_rate(interface.index, lan.rate))
        interface.setIP(str(address))
        access = Port(name, router.netns, wire.intf1.name, bridge=DEVICE, address=str(address.ip))
        self._ports[access] = access_state(lan)

        def finish() -> None:
            wire.intf1.up()
            way_out = device.route(EVERYWHERE, gateway.ip)
            host.netlink.apply(device.up(interface.index), device.up(LOOPBACK), way_out)

        self._finish.append(finish)

    def join_routers(
        self, wire: Veth, addresses: Iterable[IPv4Interface], links: Iterable[tuple[str, LinkState]]
    ) -> None:
        """Turn a wire between two routers into a pair of links, given each router's address and outgoing link."""
        ends = (wire.intf1, wire.intf2)
        self._set_mtu(*ends)
        for interface, address, (name, state) in zip(ends, addresses, links, strict=True):
            interface.setIP(str(address))
            self._ports[Port(name, interface.node.netns, interface.name)] = state

        def finish() -> None:
            # Permanent neighbours, so that ARP neither delays the measured traffic nor adds to it.
            for interface, peer in (ends, ends[::-1]):
                interface.up()
                interface.know(IPv4Address(peer.ip), peer.mac)

        self._finish.append(finish)

    def end_tunnel(
        self, end: Interface, addresses: tuple[IPv4Interface, IPv4Interface], name: str, state: LinkState
    ) -> None:
        """Turn a tunnel's end into the start of a link; `addresses` are its own and the other end's."""
        own, far = addresses
        self._set_mtu(end)
        end.setIP(str(own))
        self._ports[Port(name, end.node.netns, end.name)] = state

        def finish() -> None:
            end.up()
            end.know(far.ip, mac_of(far))

        self._finish.append(finish)

    def bring_up(self) -> None:
        """Shape every wire that was laid, then let packets pass. If ShapingError is raised, all stay down."""
        if self._ports:
            self.shaper.attach(self._ports)
        for finish in self._finish:
            finish()
        self._ports, self._finish = {}, []

    def _set_mtu(self, *interfaces: Interface) -> None:
        if self._mtu != ETHERNET_MTU:
            for interface in interfaces:
                interface.carry(self._mtu)


def needs_single_frames(link: Link) -> bool:
    """Return whether super-packets would distort a link's behaviour at any time of its trace."""
    if link.trace is not None and link.trace.opportunities is not None:
        return True
    rows = link.trace.rows if link.trace is not None else ()
    return any(map(distorted_by_offload, (link.state, *(row.over(link.state) for row in rows))))


def send_single_frames(host: NamespaceNode) -> None:
    """Turn off segmentation offload on a worker."""
    _run(host, SINGLE_FRAMES)


def access_state(lan: Lan) -> LinkState:
    """Return the state of the access link where packets leave the router, with the delay of both its directions.

    Every path between two workers goes up one access link and down another. Charging both delays on the way down gives
    the same one-way delay for half the work.
    """
    return LinkState(rate_bps=lan.rate, delay_s=2 * lan.delay, queue=LAN_QUEUE)


def _leave_in_place(*_: object) -> None:
    """Do nothing, where Mininet would move the interface into the node's namespace."""


def _run(node: NamespaceNode, command: Sequence[str]) -> None:
    done = node.inside(lambda: subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
    if done.returncode:
        said, remedy = done.stderr.decode().strip(), "`testbed doctor` says what this machine lacks"
        raise EmulationError(f"{node.name}: `{' '.join(command)}` failed: {said}; {remedy}", member=node.name)
