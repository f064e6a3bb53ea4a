"""The network: Mininet routers and container hosts, joined by shaped links, rebuilt live by difference.

    container                      paris-r (namespace)                         tokyo-r (namespace)
    +--------+   veth   +----+-------------+---------+      veth       +---------+
    |  eth0  |----------| w0 | switch lan  |  tokyo  |-----------------|  paris  | ...
    +--------+          +----+-------------+---------+                 +---------+
                                             shaped: paris->tokyo        shaped: tokyo->paris

The switch's ports are isolated from each other and the router answers ARP for all (a private VLAN). So packets between
two workers of one site pass the router too and are shaped like all others.

A WAN link is shaped where it leaves a router, never on the sending host: there TCP would see the queue and hold back.
An interface comes up only after its shaping is in force.

Workers hand super-packets of up to 64 KiB to their interface (segmentation offload), which makes high rates cheap. As
soon as a link of the network loses packets at random or counts its queue in packets, all workers send single frames,
since such a link would treat a super-packet of 45 frames as one packet.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from itertools import permutations

from mininet.net import Mininet

from testbed.emulation.links.links import Links, Observer
from testbed.emulation.network import device
from testbed.emulation.network.addressing import Addressing
from testbed.emulation.network.names import Names
from testbed.emulation.network.node import ContainerHost, Interface, Router, Veth, arrived_bytes
from testbed.emulation.network.routing import Routes
from testbed.emulation.network.share import WHOLE, Share, lay_tunnel
from testbed.emulation.network.swap import BeforeRoutes, NetworkSwap, SwapTransaction, pairs_of
from testbed.emulation.network.switch import SWITCHES, choose_switch
from testbed.emulation.network.transport import Transport
from testbed.emulation.network.wiring import Wiring, needs_single_frames, send_single_frames, set_route, set_up_router
from testbed.emulation.process import ProcessIdentity
from testbed.emulation.shaping.base import Shaper, distorted_by_offload
from testbed.link import LinkState, link_name
from testbed.spec.topology import Topology, Worker


class Network(Mininet):
    """A running WAN. `build` makes it, `swap` turns it into another, `stop` removes it.

    Attributes:
        offload: Whether workers use segmentation offload; once off, it stays off.
        switch: The name of every site's switch; a swap keeps it.
        pairs: The wires between routers, by the two sites that they join.
        names: The files by which workers resolve each other's names, if there are any.
    """

    def __init__(
        self,
        name: str,
        topology: Topology,
        shaper: Shaper,
        observer: Observer,
        fit_transport: bool = True,
        share: Share = WHOLE,
    ) -> None:
        """Prepare a network; `build` makes it. Its name labels its processes, and `share` is its part on this host.

        `observer` is called for each state that is put in force. `fit_transport` says whether workers' TCP buffers are
        sized for the network and follow it.

        Raises:
            ShapingError: A link has more jitter than the shaper gives.
            SwitchError: The topology asks for a switch that does not work here.
        """
        # Mininet's own start-up raises system-wide limits of the host (sysctl). They are not needed here, and the
        # host's settings are not ours to change.
        Mininet.inited = True
        super().__init__(topo=None, controller=None, build=False, cleanup=False)
        self.name = name
        self.topology = topology
        self.shaper = shaper
        self.check_links(topology)
        self.switch = choose_switch(topology.switch)
        single = any(map(needs_single_frames, topology.links.values()))
        self.offload = SWITCHES[self.switch].offload and not single
        self._observer = observer
        self.links_in_force = Links(shaper, self._observe)
        self.share = share
        self.addressing = Addressing()
        self.addressing.know(topology.sites, pairs_of(topology))
        self.routes = Routes({})
        self._rerouting = threading.Lock()
        self.transport = Transport(fit_transport, self._workers_there)
        self.pairs: dict[frozenset[str], Veth | Interface] = {}
        self.names: Names | None = None

    def failure(self) -> str | None:
        """Return why links or a site's switch are dead, or None if all is well."""
        if broken := self.shaper.failure():
            return broken
        here = (site for site in self.topology.sites if f"{site}-r" in self.nameToNode)
        return next((f"{site}: {why}" for site in here if (why := self.router(site).failure())), None)

    # Building -----------------------------------------------------------------------------------------------------

    def build(self) -> None:
        """Create the sites and the links between them; workers are attached by `join`."""
        for site in self.topology.sites:
            self.add_site(site)
        self.add(self.topology, pairs=pairs_of(self.topology))
        self.set_routes(Routes.over(self.topology))

    def join(self, holders: Mapping[str, ProcessIdentity]) -> None:
        """Attach workers to the network. `holders` maps each worker to a process in its container."""
        self.add(self.topology, holders)

    def publish_names(self, *topologies: Topology) -> None:
        """Make workers resolve the names of all workers of these topologies, if the network has name files."""
        if self.names is not None:
            workers = (worker for topology in topologies for worker in topology.workers)
            self.names.write({worker.name: self.address(worker) for worker in workers})

    def leave(self, workers: Iterable[str]) -> None:
        """Detach workers from the network, if they are attached; their containers stay.

        A worker may be missing here because it ended while it joined.
        """
        for name in workers:
            if name not in self.nameToNode:
                continue
            host, site = self.container(name), name.rpartition("-w")[0]
            self.shaper.detach(link_name(site, name))
            for link in self.linksBetween(self.router(site), host):
                self.router(site).switch.unplug(link.intf1.name)
                self.delLink(link)
            self.delHost(host)

    def add_site(self, site: str) -> None:
        """Create a site's router, to which no route leads yet. A site on another host is skipped."""
        if self.share.has(site):
            router = self.addHost(f"{site}-r", cls=Router, network=self.name)
            set_up_router(router, self.addressing.router(site), self.switch, self.share.mtu)

    def add(
        self,
        topology: Topology,
        holders: Mapping[str, ProcessIdentity] | None = None,
        pairs: Iterable[frozenset[str]] = (),
    ) -> None:
        """Lay wires to the topology's workers in `holders` and for these pairs of links, and bring them up together."""
        wiring = Wiring(self.shaper, self.share.mtu)
        for worker in topology.workers:
            if holders and worker.name in holders:
                self._add_worker(topology, worker, holders[worker.name], wiring)
        for pair in sorted(pairs, key=sorted):
            self._add_pair(topology, pair, wiring)
        wiring.bring_up()

    def _add_worker(self, topology: Topology, worker: Worker, holder: ProcessIdentity, wiring: Wiring) -> None:
        host = self.addHost(worker.name, cls=ContainerHost, holder=holder, network=self.name)
        host.names = self.names
        index = int(worker.name.rpartition("-w")[2])
        wire = self.addLink(self.router(worker.site), host, cls=Veth, intfName1=f"w{index}", intfName2="eth0")
        address, gateway = self.addressing.worker(worker.site, index), self.addressing.router(worker.site)
        wiring.plug_in(wire, link_name(worker.site, worker.name), address, gateway, topology.lan)
        if not self.offload:
            send_single_frames(host)
        self.transport.fit(host)

    def _add_pair(self, topology: Topology, pair: frozenset[str], wiring: Wiring) -> None:
        """Lay the wire of a physical pair; a pair whose sites are both on other hosts is skipped."""
        a, b = sorted(pair)
        if not (self.share.has(a) and self.share.has(b)):
            for near, far in ((a, b), (b, a)):
                if self.share.has(near):
                    lay_tunnel(self, topology, (near, far), wiring)
            return
        wire = self.addLink(self.router(a), self.router(b), cls=Veth, intfName1=b, intfName2=a)
        self.pairs[pair] = wire
        names = (link_name(a, b), link_name(b, a))
        states = [(name, self.links_in_force.add(topology.links[name])) for name in names]
        wiring.join_routers(wire, (self.addressing.wan(a, b), self.addressing.wan(b, a)), states)

    def remove_pair(self, pair: frozenset[str]) -> None:
        """Remove a physical pair of links, as far as it is on this host. No route may use it any more."""
        a, b = sorted(pair)
        names = (link_name(a, b), link_name(b, a))
        self.links_in_force.take((), up=True, elsewhere=set(names).difference(self.share.own(names)))
        if (wire := self.pairs.get(pair)) is None:
            return
        for name in self.share.own(names):
            self.links_in_force.remove(name)  # first, so that the replay hands no rows to a detached link
            self.shaper.detach(name)
        if isinstance(wire, Veth):
            self.delLink(wire)
        else:
            wire.delete()
        del self.pairs[pair]  # last, so that a removal that failed can be repeated

    # Asking -------------------------------------------------------------------------------------------------------

    def router(self, site: str) -> Router:
        """Return the site's router."""
        return self.nameToNode[f"{site}-r"]

    def container(self, worker: str) -> ContainerHost:
        """Return a worker as a Mininet host."""
        return self.nameToNode[worker]

    def address(self, worker: Worker) -> str:
        """Return the worker's address on the emulated network."""
        return str(self.addressing.worker(worker.site, int(worker.name.rpartition("-w")[2])).ip)

    def arrived_bytes(self) -> dict[str, int]:
        """Return, for each link, the bytes that the kernel counted at its end.

        Any thread may call it, also during a swap.
        """
        routers = (node for node in list(self.hosts) if isinstance(node, Router))
        links = (link_name(a, b) for pair in list(self.pairs) for a, b in permutations(pair))
        return arrived_bytes({node.name.removesuffix("-r"): node.holder.pid for node in routers}, links)

    # Changing -----------------------------------------------------------------------------------------------------

    def take(self, a: str, b: str, up: bool) -> None:
        """Take a physical pair down or up, and update the routes. Any thread may call it."""
        names = (link_name(a, b), link_name(b, a))
        own = self.share.own(names)
        self.links_in_force.take(own, up, elsewhere=set(names).difference(own))
        self.reroute()

    def check_links(self, topology: Topology) -> None:
        """Raise ShapingError if the shaper can't give a topology's links their jitter, or a rate of their traces."""
        for name, link in topology.links.items():
            self.shaper.check_jitter(name, link.most_jitter_s)
            if link.trace is not None and self.shaper.least_row_bps:
                self.shaper.check_rows(name, (row.over(link.state).rate_bps for row in link.trace.rows))

    def swap(
        self,
        topology: Topology,
        before_routes: BeforeRoutes = lambda _: None,
        holders: Mapping[str, ProcessIdentity] | None = None,
    ) -> NetworkSwap:
        """Change into another network; hosts and links that both networks have are not touched.

        `before_routes` is called with the names of the new links, before any packet passes them. `holders` has the
        process in the container of each worker that is new or gets another container; without it, the workers must be
        the same.

        Re-raises any failure. A failure before the routes have moved rolls everything back.
        """
        if holders is None and {one.name for one in topology.workers} != {one.name for one in self.topology.workers}:
            raise ValueError(
                f"{topology.file}: this swap can't add or remove workers; name exactly those of {self.topology.file}"
            )
        self.check_links(topology)
        if any(map(needs_single_frames, topology.links.values())):
            self.use_single_frames()
        return SwapTransaction(self, topology, holders or {}).make(before_routes)

    def _observe(self, at_s: float, link: str, state: LinkState) -> None:
        self.transport.note(link, state)
        if distorted_by_offload(state):
            self.use_single_frames()
        self._observer(at_s, link, state)

    def use_single_frames(self) -> None:
        """Turn off segmentation offload on all workers here."""
        if self.offload:
            self.offload = False
            for host in self._workers_there():
                try:
                    send_single_frames(host)
                except (OSError, RuntimeError):
                    if host.held:  # otherwise the worker has ended meanwhile
                        raise

    def _workers_there(self) -> list[ContainerHost]:
        """Return the workers here that have not ended. An ended worker stays on the network until it is replaced."""
        return [host for host in list(self.hosts) if isinstance(host, ContainerHost) and host.held]

    def reroute(self) -> None:
        """Route over the links that are not taken down.

        Two threads may take pairs down at once. Routes are therefore computed and set by one thread at a time: the last
        routes to be set know all pairs that are down.
        """
        with self._rerouting:
            self.set_routes(Routes.over(self.topology, self.links_in_force.down))

    def set_routes(self, routes: Routes) -> None:
        """Set every router's route to every other site's LAN: changed routes are replaced, lost ones removed."""
        for site in filter(self.share.has, self.topology.sites):
            router, hops = self.router(site), routes.next_hops(site)
            old = self.routes.next_hops(site)
            for target, hop in hops.items():
                if old.get(target) != hop:
                    set_route(router, self.addressing.lan(target), self.addressing.next_hop(site, hop))
            for target in old.keys() - hops.keys():
                router.netlink.apply(device.no_route(self.addressing.lan(target)))
        self.routes = routes
        elsewhere = {name: link.state for name, link in self.topology.links.items() if not self.share.has_link(name)}
        self.transport.follow(self.topology, routes, {**elsewhere, **self.links_in_force.states()})

    # Ending -------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Remove the routers and, with them, the links. Containers belong to the fleet.

        A tunnel is removed before its router: the kernel removes a namespace with a delay, and the tunnel's number
        stays in use until then.
        """
        for wire in self.pairs.values():
            if not isinstance(wire, Veth):
                wire.delete()
        for node in self.hosts:
            node.terminate()
        self.hosts.clear()
        self.links.clear()
