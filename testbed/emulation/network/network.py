"""The network: Mininet routers and container hosts, joined by shaped links, rebuilt live by difference.

    container                      paris-r (namespace)                         tokyo-r (namespace)
    +--------+   veth   +----+-------------+---------+      veth       +---------+
    |  eth0  |----------| w0 | switch lan  |  tokyo  |-----------------|  paris  | ...
    +--------+          +----+-------------+---------+                 +---------+
                                             shaped: paris->tokyo        shaped: tokyo->paris

The switch's ports are isolated from each other and the router answers for all (a private VLAN), so that what one
worker sends another of its site passes the router too and is shaped like the rest.

A WAN link is shaped where it leaves a router, never on the host that sends: there TCP would see the queue and hold
back. An interface comes up only after its shaping is in force.

Workers hand super-packets of up to 64 KiB to their interface (segmentation offload), which is what makes high rates
cheap. Where a link of the network loses at random or counts its queue in packets, all of them send single frames from
then on, since such a link would treat 45 frames as one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from itertools import permutations

from mininet.net import Mininet

from testbed.emulation.links.links import Links, Observer
from testbed.emulation.network.addressing import Addressing
from testbed.emulation.network.names import Names
from testbed.emulation.network.node import ContainerHost, Interface, Router, Veth
from testbed.emulation.network.routing import Routes
from testbed.emulation.network.share import WHOLE, Share, lay_tunnel
from testbed.emulation.network.swap import BeforeRoutes, NetworkSwap, SwapTransaction, pairs_of
from testbed.emulation.network.switch import SWITCHES, choose_switch
from testbed.emulation.network.transport import Transport
from testbed.emulation.network.wiring import (
    Wiring,
    clear_route,
    needs_single_frames,
    send_single_frames,
    set_route,
    set_up_router,
)
from testbed.emulation.process import ProcessIdentity
from testbed.emulation.shaping.base import Shaper, distorted_by_offload
from testbed.link import LinkState, link_name
from testbed.spec.topology import Topology, Worker


class Network(Mininet):
    """A running WAN. `build` makes it, `swap` turns it into another, `stop` takes it away.

    `offload` says whether workers use segmentation offload; once it is off it stays so. `switch` is what every site
    has, by name; a swap keeps it. Unless `fit_transport` is off, workers' TCP buffers fit the network, and follow it.
    `pairs` has the wires between routers, by the two sites that they join. `names` has the files by which workers
    resolve each other's names, where there are any.
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
        """Of a network that is split, `share` says what is here.

        Raises SwitchError when the topology asks for a switch that does not work here."""
        # Mininet's own start-up raises system-wide limits of the host (sysctl). What is here needs none of that,
        # and the host is not ours to change.
        Mininet.inited = True
        super().__init__(topo=None, controller=None, build=False, cleanup=False)
        self.name = name
        self.topology = topology
        self.shaper = shaper
        self.switch = choose_switch(topology.switch)
        single = any(map(needs_single_frames, topology.links.values()))
        self.offload = SWITCHES[self.switch].offload and not single
        self._observer = observer
        self.links_in_force = Links(shaper, self._observe)
        self.share = share
        self.addressing = Addressing()
        self.addressing.know(topology.sites, pairs_of(topology))
        self.routes = Routes({})
        self.transport = Transport(fit_transport, self._workers_there)
        self.pairs: dict[frozenset[str], Veth | Interface] = {}
        self.names: Names | None = None

    # Building -----------------------------------------------------------------------------------------------------

    def build(self) -> None:
        """Make the sites and the links between them; workers come with `join`."""
        for site in self.topology.sites:
            self.add_site(site)
        self.add(self.topology, pairs=pairs_of(self.topology))
        self.set_routes(Routes.over(self.topology))

    def join(self, holders: Mapping[str, ProcessIdentity]) -> None:
        """Give workers their places on the network; `holders` maps each to a process in its container."""
        self.add(self.topology, holders)

    def publish_names(self, *topologies: Topology) -> None:
        """Have workers resolve the names of all workers of these topologies, where the network has a file for them."""
        if self.names is not None:
            workers = (worker for topology in topologies for worker in topology.workers)
            self.names.write({worker.name: self.address(worker) for worker in workers})

    def leave(self, workers: Iterable[str]) -> None:
        """Take workers off the network, as far as they are on it: one may have ended as it joined. Their containers
        stay."""
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
        """Make a router, which nothing leads to as yet; none for a site that is on another host."""
        if self.share.has(site):
            router = self.addHost(f"{site}-r", cls=Router, network=self.name)
            set_up_router(router, self.addressing.router(site), self.switch, self.share.mtu)

    def add(
        self,
        topology: Topology,
        holders: Mapping[str, ProcessIdentity] | None = None,
        pairs: Iterable[frozenset[str]] = (),
    ) -> None:
        """Lay the wires of a topology's workers that are in `holders`, and of pairs of its links, and bring all up."""
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
        """Nothing where both sites are on other hosts."""
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
        """Remove a physical pair of links, as far as it is here. No route may lead over it any more."""
        a, b = sorted(pair)
        names = (link_name(a, b), link_name(b, a))
        self.links_in_force.take((), up=True, elsewhere=set(names).difference(self.share.own(names)))
        if (wire := self.pairs.pop(pair, None)) is None:
            return
        for name in self.share.own(names):
            self.shaper.detach(name)
            self.links_in_force.remove(name)
        if isinstance(wire, Veth):
            self.delLink(wire)
        else:
            wire.delete()

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

    def arrived_bytes(self) -> dict[str, int]:
        """Link → bytes the kernel has counted where it ends. Any thread may ask, also while a swap goes on."""
        received: dict[str, dict[str, int]] = {}
        for node in list(self.hosts):
            if isinstance(node, Router):
                with contextlib.suppress(FileNotFoundError):  # a site that a swap is removing
                    received[node.name.removesuffix("-r")] = node.received_bytes()
        ends = (ends for pair in list(self.pairs) for ends in permutations(pair))
        return {link_name(a, b): received[b][a] for a, b in ends if a in received.get(b, {})}

    # Changing -----------------------------------------------------------------------------------------------------

    def take(self, a: str, b: str, up: bool) -> None:
        """Take a physical pair down or up; the routes follow."""
        names = (link_name(a, b), link_name(b, a))
        own = self.share.own(names)
        self.links_in_force.take(own, up, elsewhere=set(names).difference(own))
        self.set_routes(Routes.over(self.topology, self.links_in_force.down))

    def swap(
        self,
        topology: Topology,
        before_routes: BeforeRoutes = lambda _: None,
        holders: Mapping[str, ProcessIdentity] | None = None,
    ) -> NetworkSwap:
        """Become another network, by difference: what stays the same is not touched.

        `holders` maps each worker that is not on the network yet, or gets another container, to a process in its
        container; without it the workers must be the same.

        Raises what went wrong. Up to when the routes have moved, everything is as it was then.
        """
        if holders is None and {one.name for one in topology.workers} != {one.name for one in self.topology.workers}:
            raise ValueError(f"{topology.file}: this swap must keep the workers of {self.topology.file}")
        if any(map(needs_single_frames, topology.links.values())):
            self.use_single_frames()
        return SwapTransaction(self, topology, holders or {}).make(before_routes)

    def _observe(self, at_s: float, link: str, state: LinkState) -> None:
        self.transport.note(link, state)
        if distorted_by_offload(state):
            self.use_single_frames()
        self._observer(at_s, link, state)

    def use_single_frames(self) -> None:
        """From now on no worker here sends super-packets."""
        if self.offload:
            self.offload = False
            for host in self._workers_there():
                try:
                    send_single_frames(host)
                except (OSError, RuntimeError):
                    if host.held:  # else the worker has ended meanwhile
                        raise

    def _workers_there(self) -> list[ContainerHost]:
        """Without those that have ended: they are on the network until another container takes their place."""
        return [host for host in list(self.hosts) if isinstance(host, ContainerHost) and host.held]

    def set_routes(self, routes: Routes) -> None:
        """Every router's way to every other site's LAN: replaced in place, removed where there is none any more."""
        for site in filter(self.share.has, self.topology.sites):
            router, hops = self.router(site), routes.next_hops(site)
            old = self.routes.next_hops(site)
            for target, hop in hops.items():
                if old.get(target) != hop:
                    set_route(router, self.addressing.lan(target), self.addressing.next_hop(site, hop))
            for target in old.keys() - hops.keys():
                clear_route(router, self.addressing.lan(target))
        self.routes = routes
        elsewhere = {name: link.state for name, link in self.topology.links.items() if not self.share.has_link(name)}
        self.transport.follow(self.topology, routes, {**elsewhere, **self.links_in_force.states()})

    # Ending -------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Take the routers away; links go with them. Containers belong to the fleet.

        A tunnel goes before its router: the kernel takes a namespace down in its own time, and a tunnel's number is
        taken up to then.
        """
        for wire in self.pairs.values():
            if not isinstance(wire, Veth):
                wire.delete()
        for node in self.hosts:
            node.terminate()
        self.hosts.clear()
        self.links.clear()
