"""The network: Mininet routers and container hosts, joined by shaped links, rebuilt live by difference.

    container                      paris-r (namespace)                         tokyo-r (namespace)
    +--------+   veth   +----+-------------+---------+      veth       +---------+
    |  eth0  |----------| w0 | bridge lan  |  tokyo  |-----------------|  paris  | ...
    +--------+          +----+-------------+---------+                 +---------+
                                             shaped: paris->tokyo        shaped: tokyo->paris

The bridge's ports are isolated from each other and the router answers for all (a private VLAN), so that what one
worker sends another of its site passes the router too and is shaped like the rest.

A WAN link is shaped where it leaves a router, never on the host that sends: there TCP would see the queue and hold
back. An interface comes up only after its shaping is in force.

Workers hand super-packets of up to 64 KiB to their interface (segmentation offload), which is what makes high rates
cheap. Where a link of the network loses at random or counts its queue in packets, all of them send single frames from
then on, since such a link would treat 45 frames as one.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mininet.net import Mininet

from testbed.emulation.addressing import Addressing
from testbed.emulation.links import Links, Observer
from testbed.emulation.node import ContainerHost, NamespaceNode, Router, Veth
from testbed.emulation.routing import Routes
from testbed.emulation.shaping.access import limit_rate
from testbed.emulation.shaping.base import Port, Shaper, distorted_by_offload
from testbed.link import LinkState, Queue, link_ends, link_name
from testbed.spec.topology import Link, Topology, Worker

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
BRIDGE_SETTINGS = (
    "net.ipv4.conf.lan.proxy_arp_pvlan=1",
    "net.ipv4.neigh.lan.proxy_delay=0",
    "net.ipv4.conf.lan.send_redirects=0",
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

#: What a port of a site's switch may hold: a megabyte, 8 ms at 1 Gbit/s, as shallow data-centre switches have.
LAN_QUEUE = Queue(1e6, "bytes")


@dataclass(frozen=True, slots=True)
class NetworkSwap:
    """What a swap did. `seconds` from its begin until all of it was in force."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    seconds: float


def pair_of(link: str) -> frozenset[str]:
    """The two sites a directed link joins."""
    return frozenset(link_ends(link))


def needs_single_frames(link: Link) -> bool:
    """Whether super-packets would distort what is asked of a link, at any time of its trace."""
    rows = link.trace.rows if link.trace is not None else ()
    return any(map(distorted_by_offload, (link.state, *(row.over(link.state) for row in rows))))


class Network(Mininet):
    """A running WAN. `build` makes it, `swap` turns it into another, `stop` takes it away.

    `offload` says whether workers use segmentation offload; once it is off it stays so.
    """

    def __init__(self, name: str, topology: Topology, shaper: Shaper, observer: Observer) -> None:
        # Mininet's own start-up raises system-wide limits of the host (sysctl). What is here needs none of that,
        # and the host is not ours to change.
        Mininet.inited = True
        super().__init__(topo=None, controller=None, build=False, cleanup=False)
        self.name = name
        self.topology = topology
        self.shaper = shaper
        self.offload = not any(map(needs_single_frames, topology.links.values()))
        self._observer = observer
        self.links_in_force = Links(shaper, self._observe)
        self.addressing = Addressing()
        self.routes = Routes.over(topology)
        self._pairs: dict[frozenset[str], Veth] = {}

    # Building -----------------------------------------------------------------------------------------------------

    def build(self) -> None:
        """Make the sites and the links between them; workers come with `join`."""
        for site in self.topology.sites:
            self._add_site(site)
        for pair in sorted(self._wanted_pairs(self.topology), key=sorted):
            self._add_pair(self.topology, pair)
        self._set_routes(Routes.over(self.topology))
        self.built = True

    def join(self, pids: Mapping[str, int]) -> None:
        """Give every worker its place; `pids` maps each to a process in its container."""
        for worker in self.topology.workers:
            self._add_worker(worker, pids[worker.name])

    def _add_site(self, site: str) -> None:
        router = self.addHost(f"{site}-r", cls=Router)
        _configure(router, ROUTER_SETTINGS)
        netlink, gateway = router.netlink, self.addressing.router(site)
        netlink.link("set", index=router.interface_index("lo"), state="up")
        netlink.link("add", ifname="lan", kind="bridge")
        bridge = router.interface_index("lan")
        _configure(router, BRIDGE_SETTINGS)
        netlink.addr("add", index=bridge, address=str(gateway.ip), prefixlen=gateway.network.prefixlen)
        netlink.link("set", index=bridge, state="up")

    def _add_worker(self, worker: Worker, pid: int) -> None:
        host = self.addHost(worker.name, cls=ContainerHost, pid=pid)
        _configure(host, HOST_SETTINGS)
        router = self.router(worker.site)
        index = int(worker.name.rpartition("-w")[2])
        port = f"w{index}"
        link = self.addLink(router, host, cls=Veth, intfName1=port, intfName2="eth0")
        bridge = router.interface_index("lan")
        router.netlink.link("set", index=router.interface_index(port), master=bridge)
        router.netlink.brport("set", index=router.interface_index(port), isolated=1)
        address = self.addressing.worker(worker.site, index)
        link.intf2.setIP(str(address))
        self._shape_access(worker, router, port, host)
        if not self.offload:
            _run(host, SINGLE_FRAMES)
        link.intf1.up()
        link.intf2.up()
        host.netlink.link("set", index=host.interface_index("lo"), state="up")
        host.netlink.route("add", dst="default", gateway=str(self.addressing.router(worker.site).ip))

    def _shape_access(self, worker: Worker, router: Router, port: str, host: ContainerHost) -> None:
        """The access link: its rate on each end, and the delay of both directions where packets leave the router.

        Every path between two workers goes up one access link and down another, so charging both delays on the
        way down gives the same one-way delay for half the work.
        """
        lan = self.topology.lan
        state = LinkState(rate_bps=lan.rate, delay_s=2 * lan.delay, queue=LAN_QUEUE)
        name = link_name(worker.site, worker.name)
        self.shaper.attach(Port(name, router.netns, port, bridge="lan", address=self.address(worker)), state)
        limit_rate(host.netlink, host.interface_index("eth0"), lan.rate)

    def _add_pair(self, topology: Topology, pair: frozenset[str]) -> None:
        """A physical pair of links: wired, shaped both ways, and only then brought up."""
        a, b = sorted(pair)
        wire = self.addLink(self.router(a), self.router(b), cls=Veth, intfName1=b, intfName2=a)
        self._pairs[pair] = wire
        for source, target, interface in ((a, b, wire.intf1), (b, a, wire.intf2)):
            interface.setIP(str(self.addressing.wan(source, target)))
            link = topology.links[link_name(source, target)]
            state = self.links_in_force.add(link)
            self.shaper.attach(Port(link.name, self.router(source).netns, target), state)
        # Permanent neighbours: no address resolution ever delays or joins what is measured.
        for interface, peer in ((wire.intf1, wire.intf2), (wire.intf2, wire.intf1)):
            interface.up()
            interface.know(peer)

    # Asking -------------------------------------------------------------------------------------------------------

    def router(self, site: str) -> Router:
        """The site's router."""
        return self.nameToNode[f"{site}-r"]

    def container(self, worker: str) -> ContainerHost:
        """A worker as a Mininet host."""
        return self.nameToNode[worker]

    def address(self, worker: Worker) -> str:
        """The worker's address on the emulated network."""
        return str(self.addressing.worker(worker.site, int(worker.name.rpartition("-w")[2])).ip)

    def link_address(self, link: str) -> str:
        """The far end's address of a directed link: what its source pings."""
        source, target = link_ends(link)
        return str(self.addressing.wan(target, source).ip)

    def arrived_bytes(self) -> dict[str, int]:
        """Link → bytes the kernel has counted where it ends. Any thread may ask, also while a swap goes on."""
        received: dict[str, dict[str, int]] = {}
        for node in list(self.hosts):
            if isinstance(node, Router):
                with contextlib.suppress(FileNotFoundError):  # a site that a swap is removing
                    received[node.name.removesuffix("-r")] = node.received_bytes()
        ends = (link_ends(name) for name in self.links_in_force.states())
        return {link_name(a, b): received[b][a] for a, b in ends if a in received.get(b, {})}

    # Changing -----------------------------------------------------------------------------------------------------

    def take(self, a: str, b: str, up: bool) -> None:
        """Take a physical pair down or up; the routes follow."""
        self.links_in_force.take((link_name(a, b), link_name(b, a)), up)
        self._set_routes(Routes.over(self.topology, self.links_in_force.down))

    def swap(self, topology: Topology, before_routes: Callable[[set[str]], None] = lambda _: None) -> NetworkSwap:
        """Become another network, by difference: what stays the same is not touched.

        What is new is built first, then the routes move over, then what is gone is removed, so that no route ever
        leads to a link that is not there. The workers must be the same. `before_routes` is called with the names of
        the new links when they are there and nothing passes them yet.
        """
        began = time.monotonic()
        if {w.name for w in topology.workers} != {w.name for w in self.topology.workers}:
            raise ValueError(f"{topology.file}: a swap keeps the workers of {self.topology.file}; it has others")
        if any(map(needs_single_frames, topology.links.values())):
            self._send_single_frames()
        before, after = self._wanted_pairs(self.topology), self._wanted_pairs(topology)
        for site in topology.sites.keys() - self.topology.sites.keys():
            self._add_site(site)
        for pair in after - before:
            self._add_pair(topology, pair)
        before_routes(topology.links.keys() - self.topology.links.keys())
        changed = [
            link
            for name, link in topology.links.items()
            if name in self.topology.links and link != self.topology.links[name]
        ]
        self.links_in_force.configure(changed)
        removed_sites = self.topology.sites.keys() - topology.sites.keys()
        old, self.topology = self.topology, topology
        self._set_routes(Routes.over(topology, self.links_in_force.down))
        for pair in before - after:
            self._remove_pair(pair)
        for site in removed_sites:
            self.delHost(self.router(site))
        return NetworkSwap(
            added=tuple(sorted(topology.links.keys() - old.links.keys())),
            removed=tuple(sorted(old.links.keys() - topology.links.keys())),
            changed=tuple(sorted(link.name for link in changed)),
            seconds=time.monotonic() - began,
        )

    def _observe(self, at_s: float, link: str, state: LinkState) -> None:
        if distorted_by_offload(state):
            self._send_single_frames()
        self._observer(at_s, link, state)

    def _send_single_frames(self) -> None:
        if self.offload:
            self.offload = False
            for host in self.hosts:
                if isinstance(host, ContainerHost):
                    _run(host, SINGLE_FRAMES)

    def _remove_pair(self, pair: frozenset[str]) -> None:
        wire = self._pairs.pop(pair)
        a, b = sorted(pair)
        for name in (link_name(a, b), link_name(b, a)):
            self.shaper.detach(name)
            self.links_in_force.remove(name)
        self.delLink(wire)

    @staticmethod
    def _wanted_pairs(topology: Topology) -> set[frozenset[str]]:
        return {pair_of(name) for name in topology.links}

    def _set_routes(self, routes: Routes) -> None:
        """Every router's way to every other site's LAN: replaced in place, removed where there is none any more."""
        for site in self.topology.sites:
            netlink, hops = self.router(site).netlink, routes.next_hops(site)
            old = self.routes.next_hops(site) if self.built else {}
            for target, hop in hops.items():
                if old.get(target) != hop:
                    gateway = str(self.addressing.next_hop(site, hop))
                    netlink.route("replace", dst=str(self.addressing.lan(target)), gateway=gateway)
            for target in old.keys() - hops.keys():
                netlink.route("del", dst=str(self.addressing.lan(target)))
        self.routes = routes

    # Ending -------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Take the routers away; links go with them. Containers belong to the fleet."""
        for node in self.hosts:
            node.terminate()
        self.hosts.clear()
        self.links.clear()


def _configure(node: NamespaceNode, settings: Iterable[str]) -> None:
    _run(node, ("sysctl", "-qw", *settings))


def _run(node: NamespaceNode, command: Sequence[str]) -> None:
    process = node.popen([*command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, complaint = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{node.name}: `{' '.join(command)}` failed: {complaint.decode().strip()}")
