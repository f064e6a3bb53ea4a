"""How nodes become a WAN: a site's router, workers plugged in, routers joined by shaped links.

Wires are laid one by one and come up together: to shape one port takes as long as to shape all of a router's.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path

from testbed.emulation.network import device
from testbed.emulation.network.node import Interface, NamespaceNode, Router, Veth, mac_of
from testbed.emulation.network.switch import DEVICE, SWITCHES
from testbed.emulation.shaping.base import Port, Shaper, distorted_by_offload
from testbed.emulation.shaping.tc import limit_rate
from testbed.link import LinkState, Queue
from testbed.spec.topology import Lan, Link, SwitchName

#: What a fresh namespace needs before it is a router. IPv6 is off: nothing of ours uses it, and its chatter would
#: count as traffic. Without loose reverse-path checks, routes that differ by direction would lose packets.
ROUTER_SETTINGS = (
    "net.ipv4.ip_forward=1",
    "net.ipv4.conf.all.rp_filter=0",
    "net.ipv4.conf.default.rp_filter=0",
    "net.ipv6.conf.all.disable_ipv6=1",
    "net.ipv6.conf.default.disable_ipv6=1",
)
#: The router answers ARP for a site's workers, and sends no redirect when they then pass through it.
LAN_SETTINGS = (
    f"net.ipv4.conf.{DEVICE}.proxy_arp_pvlan=1",
    f"net.ipv4.neigh.{DEVICE}.proxy_delay=0",
    f"net.ipv4.conf.{DEVICE}.send_redirects=0",
    "net.ipv4.conf.all.send_redirects=0",
)
#: Hosts, where the kernel has it (since 5.18): a super-packet is what a flow sends in a millisecond, however short its
#: round trip. Else TCP fills super-packets of up to 64 KiB where the round trip is below 0.5 ms, as on links without
#: delay: over 10 Mbit/s they had 16 to 48 KiB, of which each link on the way waits for the last byte (13 to 39 ms),
#: where a real one forwards the first frame after 1.2 ms. Measured: BBR's mean round trip fell from 30 to 17 ms.
SHORT_SUPER_PACKETS = ("net.ipv4.tcp_tso_rtt_log=0",) if Path("/proc/sys/net/ipv4/tcp_tso_rtt_log").exists() else ()

#: Hosts: a least round trip is remembered for ten seconds, not five minutes, so that it follows a network swap.
HOST_SETTINGS = (
    "net.ipv6.conf.all.disable_ipv6=1",
    "net.ipv6.conf.default.disable_ipv6=1",
    "net.ipv4.tcp_min_rtt_wlen=10",
    # How long a connection outlives an outage is for the library to say, by its own time limit, not for a count of
    # retransmissions.
    "net.ipv4.tcp_retries2=255",
    *SHORT_SUPER_PACKETS,
)
#: All ways of sending super-packets, those of UDP among them (QUIC has them), and the one of receiving them.
SINGLE_FRAMES = ("ethtool", "-K", "eth0", "tso", "off", "gso", "off", "tx-udp-segmentation", "off", "gro", "off")

#: Frames leave with their checksums filled in; then nothing is left to a device to segment either.
WHOLE_FRAMES = ("ethtool", "-K", "eth0", "tx", "off")

#: What every interface has unless told otherwise.
ETHERNET_MTU = 1500

#: The index of every namespace's `lo`.
LOOPBACK = 1
EVERYWHERE = IPv4Network("0.0.0.0/0")

#: What a port of a site's switch may hold: a megabyte, 8 ms at 1 Gbit/s, as shallow data-centre switches have.
LAN_QUEUE = Queue(1e6, "bytes")


def set_up_router(router: Router, gateway: IPv4Interface, switch: SwitchName, mtu: int = ETHERNET_MTU) -> None:
    """Make a namespace forward, and give it its site's switch, with the router's address on it. Raises SwitchError."""
    router.configure(ROUTER_SETTINGS)
    router.netlink.apply(device.up(LOOPBACK))
    # A switch without a MAC address of its own takes the least of its ports': a worker that comes or goes would change
    # it, and the others would send to the old one until they ask again, half a minute later.
    router.switch = SWITCHES[switch](router.netns, router.netlink, mac_of(gateway))
    router.configure(LAN_SETTINGS)
    # Before all its other interfaces (a Topo counts them from 0), so that Mininet takes the address that others can
    # reach for the router's own.
    lan = Interface(DEVICE, node=router, port=-1, moveIntfFn=_is_there)
    lan.setIP(str(gateway))
    if mtu != ETHERNET_MTU:
        lan.carry(mtu)
    lan.up()


def set_route(router: Router, lan: IPv4Network, hop: IPv4Address) -> None:
    """Send what is for a site's LAN to a neighbour, in place of the way it went before.

    The router's own packets bear its address on its LAN: no one has a route to the addresses of WAN links.
    """
    router.netlink.apply(device.route(lan, hop, IPv4Address(router.IP())))


def clear_route(router: Router, lan: IPv4Network) -> None:
    """No way to a site's LAN any more."""
    router.netlink.apply(device.no_route(lan))


class Wiring:
    """Wires that are being laid between nodes. They stay down until `bring_up` has them shaped, all in one batch."""

    def __init__(self, shaper: Shaper, mtu: int = ETHERNET_MTU) -> None:
        """`mtu` is that of every interface that is laid."""
        self._shaper = shaper
        self._mtu = mtu
        self._ports: dict[Port, LinkState] = {}
        self._finish: list[Callable[[], None]] = []

    def plug_in(self, wire: Veth, name: str, address: IPv4Interface, gateway: IPv4Interface, lan: Lan) -> None:
        """Make a wire from a router to a worker the access link of this name."""
        router, host, interface = wire.intf1.node, wire.intf2.node, wire.intf2
        host.configure(HOST_SETTINGS)
        self._fit(wire.intf1, interface)
        router.switch.plug(wire.intf1.name)
        if not router.switch.offload:
            _run(host, WHOLE_FRAMES)
        # Whoever comes to have a worker's address has its MAC address too: the router still knows it of the last one.
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
        """Make a wire between two routers a physical pair of links.

        `addresses` and `links` (name and state, in the direction away from it) are of its two ends in order.
        """
        ends = (wire.intf1, wire.intf2)
        self._fit(*ends)
        for interface, address, (name, state) in zip(ends, addresses, links, strict=True):
            interface.setIP(str(address))
            self._ports[Port(name, interface.node.netns, interface.name)] = state

        def finish() -> None:
            # Permanent neighbours: no address resolution ever delays or joins what is measured.
            for interface, peer in (ends, ends[::-1]):
                interface.up()
                interface.know(IPv4Address(peer.ip), peer.mac)

        self._finish.append(finish)

    def end_tunnel(
        self, end: Interface, addresses: tuple[IPv4Interface, IPv4Interface], name: str, state: LinkState
    ) -> None:
        """Make a tunnel's end the beginning of a link; `addresses` are its own and the far end's."""
        own, far = addresses
        self._fit(end)
        end.setIP(str(own))
        self._ports[Port(name, end.node.netns, end.name)] = state

        def finish() -> None:
            end.up()
            end.know(far.ip, mac_of(far))

        self._finish.append(finish)

    def bring_up(self) -> None:
        """Shape every wire that was laid, and only then let packets pass. Raises ShapingError; then all stay down."""
        if self._ports:
            self._shaper.attach(self._ports)
        for finish in self._finish:
            finish()
        self._ports, self._finish = {}, []

    def _fit(self, *interfaces: Interface) -> None:
        if self._mtu != ETHERNET_MTU:
            for interface in interfaces:
                interface.carry(self._mtu)


def needs_single_frames(link: Link) -> bool:
    """Whether super-packets would distort what is asked of a link, at any time of its trace."""
    if link.trace is not None and link.trace.opportunities is not None:
        return True
    rows = link.trace.rows if link.trace is not None else ()
    return any(map(distorted_by_offload, (link.state, *(row.over(link.state) for row in rows))))


def send_single_frames(host: NamespaceNode) -> None:
    """Let a worker do without segmentation offload from now on."""
    _run(host, SINGLE_FRAMES)


def access_state(lan: Lan) -> LinkState:
    """The access link where packets leave the router, with the delay of both its directions.

    Every path between two workers goes up one access link and down another, so charging both delays on the way down
    gives the same one-way delay for half the work.
    """
    return LinkState(rate_bps=lan.rate, delay_s=2 * lan.delay, queue=LAN_QUEUE)


def _is_there(*_: object) -> None:
    """Mininet would move the interface into the node's namespace."""


def _run(node: NamespaceNode, command: Sequence[str]) -> None:
    done = node.inside(lambda: subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
    if done.returncode:
        raise RuntimeError(f"{node.name}: `{' '.join(command)}` failed: {done.stderr.decode().strip()}")
