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
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from mininet.net import Mininet

from testbed.emulation import device
from testbed.emulation.addressing import Addressing
from testbed.emulation.difference import Difference
from testbed.emulation.links import Links, Observer
from testbed.emulation.node import ContainerHost, Router, Veth
from testbed.emulation.routing import Routes
from testbed.emulation.shaping.access import limit_rate
from testbed.emulation.shaping.base import Shaper, distorted_by_offload
from testbed.emulation.switch import SWITCHES, choose_switch
from testbed.emulation.transport import Transport
from testbed.emulation.wiring import (
    Wiring,
    access_state,
    needs_single_frames,
    send_single_frames,
    set_route,
    set_up_router,
)
from testbed.link import LinkState, link_ends, link_name
from testbed.spec.topology import Lan, Topology, Worker


@dataclass(frozen=True, slots=True)
class NetworkSwap:
    """What a swap did to the links. `seconds` from its begin until all of it was in force."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    seconds: float


def pair_of(link: str) -> frozenset[str]:
    """The two sites a directed link joins."""
    return frozenset(link_ends(link))


class Network(Mininet):
    """A running WAN. `build` makes it, `swap` turns it into another, `stop` takes it away.

    `offload` says whether workers use segmentation offload; once it is off it stays so. `switch` is what every site
    has, by name; a swap keeps it. Unless `fit_transport` is off, workers' TCP buffers fit the network, and follow it.
    """

    def __init__(
        self, name: str, topology: Topology, shaper: Shaper, observer: Observer, fit_transport: bool = True
    ) -> None:
        """Raises SwitchError when the topology asks for a switch that does not work here."""
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
        self.addressing = Addressing()
        self.routes = Routes.over(topology)
        self.transport = Transport(fit_transport, self._workers_there)
        self._pairs: dict[frozenset[str], Veth] = {}

    # Building -----------------------------------------------------------------------------------------------------

    def build(self) -> None:
        """Make the sites and the links between them; workers come with `join`."""
        for site in self.topology.sites:
            self._add_site(site)
        wiring = Wiring(self.shaper)
        for pair in sorted(self._wanted_pairs(self.topology), key=sorted):
            self._add_pair(self.topology, pair, wiring)
        wiring.bring_up()
        self._set_routes(Routes.over(self.topology))
        self.built = True

    def join(self, pids: Mapping[str, int]) -> None:
        """Give every worker its place; `pids` maps each to a process in its container."""
        wiring = Wiring(self.shaper)
        for worker in self.topology.workers:
            self._add_worker(worker, pids[worker.name], self.topology.lan, wiring)
        wiring.bring_up()

    def replace_worker(self, name: str, pid: int) -> None:
        """Give a worker's place to the process `pid` in another container of its; the one before has ended."""
        self.leave([name])
        worker = next(worker for worker in self.topology.workers if worker.name == name)
        wiring = Wiring(self.shaper)
        self._add_worker(worker, pid, self.topology.lan, wiring)
        wiring.bring_up()

    def leave(self, workers: Iterable[str]) -> None:
        """Take workers off the network; their containers stay."""
        for name in workers:
            host, site = self.container(name), name.rpartition("-w")[0]
            self.shaper.detach(link_name(site, name))
            (link,) = self.linksBetween(self.router(site), host)
            self.router(site).switch.unplug(link.intf1.name)
            self.delLink(link)
            self.delHost(host)

    def _add_site(self, site: str) -> None:
        set_up_router(self.addHost(f"{site}-r", cls=Router), self.addressing.router(site), self.switch)

    def _add_worker(self, worker: Worker, pid: int, lan: Lan, wiring: Wiring) -> None:
        host = self.addHost(worker.name, cls=ContainerHost, pid=pid)
        index = int(worker.name.rpartition("-w")[2])
        wire = self.addLink(self.router(worker.site), host, cls=Veth, intfName1=f"w{index}", intfName2="eth0")
        address, gateway = self.addressing.worker(worker.site, index), self.addressing.router(worker.site)
        wiring.plug_in(wire, link_name(worker.site, worker.name), address, gateway, lan)
        if not self.offload:
            send_single_frames(host)
        self.transport.fit(host)

    def _change_lan(self, lan: Lan, workers: Iterable[Worker]) -> None:
        """Another LAN under workers that are there."""
        workers = list(workers)
        self.shaper.apply({link_name(worker.site, worker.name): access_state(lan) for worker in workers})
        for worker in workers:
            host = self.container(worker.name)
            host.netlink.apply(limit_rate(host.interface_index("eth0"), lan.rate))

    def _add_pair(self, topology: Topology, pair: frozenset[str], wiring: Wiring) -> None:
        a, b = sorted(pair)
        wire = self.addLink(self.router(a), self.router(b), cls=Veth, intfName1=b, intfName2=a)
        self._pairs[pair] = wire
        names = (link_name(a, b), link_name(b, a))
        states = [(name, self.links_in_force.add(topology.links[name])) for name in names]
        wiring.join_routers(wire, (self.addressing.wan(a, b), self.addressing.wan(b, a)), states)

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

    def swap(
        self,
        topology: Topology,
        before_routes: Callable[[set[str]], None] = lambda _: None,
        pids: Mapping[str, int] | None = None,
    ) -> NetworkSwap:
        """Become another network, by difference: what stays the same is not touched.

        What is new is built first, then the routes move over, then what is gone is removed, so that no route ever
        leads to a link that is not there. `pids` maps each worker that is not on the network yet, or gets another
        container, to a process in its container; without it the workers must be the same. `before_routes` is called
        with the names of the new links when they are there and nothing passes them yet.

        Raises what went wrong. Up to when the routes have moved, everything is as it was then.
        """
        began = time.monotonic()
        difference = Difference.between(self.topology, topology)
        if pids is None and (difference.workers.added or difference.workers.removed):
            raise ValueError(f"{topology.file}: a swap keeps the workers of {self.topology.file}; it has others")
        if any(map(needs_single_frames, topology.links.values())):
            self._send_single_frames()
        old, replaced = self.topology, self._pids(difference.workers.changed)
        try:
            self._grow(topology, difference, pids or {})
            before_routes(set(difference.links.added))
            self.links_in_force.configure(topology.links[name] for name in difference.links.changed)
            self.topology = topology
            self._set_routes(Routes.over(topology, self.links_in_force.down))
        except Exception:
            self._go_back(old, difference, replaced if pids else {})
            raise
        for pair in self._wanted_pairs(old) - self._wanted_pairs(topology):
            self._remove_pair(pair)
        self.leave(difference.workers.removed)
        for site in difference.sites.removed:
            self.delHost(self.router(site))
        links = difference.links
        return NetworkSwap(links.added, links.removed, links.changed, seconds=time.monotonic() - began)

    def _grow(self, topology: Topology, difference: Difference, pids: Mapping[str, int]) -> None:
        """Make what another network has more; take workers over to other containers."""
        for site in difference.sites.added:
            self._add_site(site)
        self.leave(name for name in difference.workers.changed if name in pids)
        if difference.lan:
            self._change_lan(topology.lan, self._there(self.topology))
        wiring = Wiring(self.shaper)
        for worker in topology.workers:
            if worker.name not in self.nameToNode:
                self._add_worker(worker, pids[worker.name], topology.lan, wiring)
        for pair in self._wanted_pairs(topology) - self._wanted_pairs(self.topology):
            self._add_pair(topology, pair, wiring)
        wiring.bring_up()

    def _go_back(self, old: Topology, difference: Difference, pids: Mapping[str, int]) -> None:
        """Undo what a swap has done that failed before anything was removed. `pids` has the containers that changed
        workers had. Changes that were asked of links that the swap changed are forgotten."""
        added = [name for name in difference.workers.added if name in self.nameToNode]
        self.leave([*added, *(name for name in pids if name in self.nameToNode)])
        self.topology = old
        self.links_in_force.configure(old.links[name] for name in difference.links.changed)
        if difference.lan:
            self._change_lan(old.lan, self._there(old))
        wiring = Wiring(self.shaper)
        for worker in old.workers:
            if worker.name not in self.nameToNode:
                self._add_worker(worker, pids[worker.name], old.lan, wiring)
        wiring.bring_up()
        self.routes = Routes({})  # some may have moved: all are set again
        self._set_routes(Routes.over(old, self.links_in_force.down))
        for pair in self._pairs.keys() - self._wanted_pairs(old):
            self._remove_pair(pair)
        for site in difference.sites.added:
            if f"{site}-r" in self.nameToNode:
                self.delHost(self.router(site))

    def _there(self, topology: Topology) -> list[Worker]:
        """The topology's workers that are on the network."""
        return [worker for worker in topology.workers if worker.name in self.nameToNode]

    def _pids(self, workers: Iterable[str]) -> dict[str, int]:
        return {name: self.container(name).pid for name in workers}

    def _observe(self, at_s: float, link: str, state: LinkState) -> None:
        self.transport.note(link, state)
        if distorted_by_offload(state):
            self._send_single_frames()
        self._observer(at_s, link, state)

    def _send_single_frames(self) -> None:
        if self.offload:
            self.offload = False
            for host in self._workers_there():
                send_single_frames(host)

    def _workers_there(self) -> list[ContainerHost]:
        return [host for host in list(self.hosts) if isinstance(host, ContainerHost)]

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
            router, hops = self.router(site), routes.next_hops(site)
            old = self.routes.next_hops(site) if self.built else {}
            for target, hop in hops.items():
                if old.get(target) != hop:
                    set_route(router, self.addressing.lan(target), self.addressing.next_hop(site, hop))
            for target in old.keys() - hops.keys():
                router.netlink.apply(device.no_route(self.addressing.lan(target)))
        self.routes = routes
        self.transport.follow(self.topology, routes, self.links_in_force.states())

    # Ending -------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Take the routers away; links go with them. Containers belong to the fleet."""
        for node in self.hosts:
            node.terminate()
        self.hosts.clear()
        self.links.clear()
