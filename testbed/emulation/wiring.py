"""How nodes become a WAN, one at a time: a site's router, a worker plugged in, two routers joined by shaped links."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Interface, IPv4Network

from testbed.emulation.node import Interface, NamespaceNode, Router, Veth
from testbed.emulation.shaping.access import limit_rate
from testbed.emulation.shaping.base import Port, Shaper, distorted_by_offload
from testbed.emulation.switch import DEVICE, SWITCHES
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
#: Hosts: a least round trip is remembered for ten seconds, not five minutes, so that it follows a network swap.
HOST_SETTINGS = (
    "net.ipv6.conf.all.disable_ipv6=1",
    "net.ipv6.conf.default.disable_ipv6=1",
    "net.ipv4.tcp_min_rtt_wlen=10",
    # How long a connection outlives an outage is for the library to say, by its own time limit, not for a count of
    # retransmissions.
    "net.ipv4.tcp_retries2=255",
)

#: Both ways of sending super-packets, and the one of receiving them.
SINGLE_FRAMES = ("ethtool", "-K", "eth0", "tso", "off", "gso", "off", "gro", "off")

#: Frames leave with their checksums filled in; then nothing is left to a device to segment either.
WHOLE_FRAMES = ("ethtool", "-K", "eth0", "tx", "off")

#: What a port of a site's switch may hold: a megabyte, 8 ms at 1 Gbit/s, as shallow data-centre switches have.
LAN_QUEUE = Queue(1e6, "bytes")


def set_up_router(router: Router, gateway: IPv4Interface, switch: SwitchName) -> None:
    """Make a namespace forward, and give it its site's switch, with the router's address on it. Raises SwitchError."""
    router.configure(ROUTER_SETTINGS)
    router.netlink.link("set", index=router.interface_index("lo"), state="up")
    # A switch without a MAC address of its own takes the least of its ports': a worker that comes or goes would change
    # it, and the others would send to the old one until they ask again, half a minute later.
    router.switch = SWITCHES[switch](router.netns, router.netlink, _mac(gateway))
    router.configure(LAN_SETTINGS)
    # Its first interface, so that Mininet takes the address that others can reach for the router's own.
    lan = Interface(DEVICE, node=router, moveIntfFn=_is_there)
    lan.setIP(str(gateway))
    lan.up()


def _mac(address: IPv4Interface) -> str:
    """A MAC address that follows from an IP address, locally administered."""
    return "02:00:" + address.ip.packed.hex(":")


def set_route(router: Router, lan: IPv4Network, hop: IPv4Address) -> None:
    """Send what is for a site's LAN to a neighbour, in place of the way it went before.

    The router's own packets bear its address on its LAN: no one has a route to the addresses of WAN links.
    """
    router.netlink.route("replace", dst=str(lan), gateway=str(hop), prefsrc=router.IP())


def plug_in(wire: Veth, name: str, address: IPv4Interface, gateway: IPv4Interface, lan: Lan, shaper: Shaper) -> None:
    """Make a wire from a router to a worker the access link of this name, shaped before it comes up."""
    router, host = wire.intf1.node, wire.intf2.node
    host.configure(HOST_SETTINGS)
    router.switch.plug(wire.intf1.name)
    if not router.switch.offload:
        _run(host, WHOLE_FRAMES)
    # Whoever comes to have a worker's address has its MAC address too: the router still knows it of the last one.
    wire.intf2.mac = _mac(address)
    host.netlink.link("set", index=host.interface_index("eth0"), address=wire.intf2.mac)
    wire.intf2.setIP(str(address))
    access = Port(name, router.netns, wire.intf1.name, bridge=DEVICE, address=str(address.ip))
    shaper.attach(access, access_state(lan))
    limit_rate(host.netlink, host.interface_index("eth0"), lan.rate)
    wire.intf1.up()
    wire.intf2.up()
    host.netlink.link("set", index=host.interface_index("lo"), state="up")
    host.netlink.route("add", dst="default", gateway=str(gateway.ip))


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


def join_routers(
    wire: Veth, addresses: Iterable[IPv4Interface], links: Iterable[tuple[str, LinkState]], shaper: Shaper
) -> None:
    """Make a wire between two routers a physical pair of links: shaped both ways, and only then brought up.

    `addresses` and `links` (name and state, in the direction away from it) are of its two ends in order.
    """
    ends = (wire.intf1, wire.intf2)
    for interface, address, (name, state) in zip(ends, addresses, links, strict=True):
        interface.setIP(str(address))
        shaper.attach(Port(name, interface.node.netns, interface.name), state)
    # Permanent neighbours: no address resolution ever delays or joins what is measured.
    for interface, peer in (ends, ends[::-1]):
        interface.up()
        interface.know(peer)


def _is_there(*_: object) -> None:
    """Mininet would move the interface into the node's namespace."""


def _run(node: NamespaceNode, command: Sequence[str]) -> None:
    process = node.popen([*command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, complaint = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{node.name}: `{' '.join(command)}` failed: {complaint.decode().strip()}")
