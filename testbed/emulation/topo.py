"""A topology file as a Mininet `Topo`, for programs that run their own Mininet.

    from mininet.net import Mininet
    from testbed.emulation.topo import WanTopo

    net = Mininet(topo=WanTopo("topologies/quickstart.yaml"), controller=None)
    net.start()
    print(net["toronto-w0"].cmd("ping -c 3", net["tokyo-w0"].IP()))
    net.stop()

Workers are namespaces with the host's file system, not containers. Links have their configured state, or the start of
their traces. The first shaping backend that works on this machine shapes them, also without netem in the kernel; if
none works, ShapingError is raised. The site's switch is the first that works, or the switch that the file names; if
the named switch does not work, SwitchError is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path
from typing import Any

from mininet.topo import Topo

from testbed.emulation.network.addressing import Addressing
from testbed.emulation.network.node import NamespaceHost, Router, Veth
from testbed.emulation.network.routing import Routes
from testbed.emulation.network.switch import choose_switch
from testbed.emulation.network.transport import Transport
from testbed.emulation.network.wiring import (
    Wiring,
    needs_single_frames,
    send_single_frames,
    set_route,
    set_up_router,
)
from testbed.emulation.shaping import open_shaper
from testbed.link import LinkState, link_name
from testbed.spec.topology import Lan, SwitchName, Topology, Worker

#: Applies the kernel settings that the network needs to a worker.
Fit = Callable[[NamespaceHost], None]


class WanTopo(Topo):
    """Sites, workers and shaped links of a topology file. Raises SpecError if the file is wrong."""

    def build(self, file: str | Path) -> None:
        """Add the sites' routers, their workers and the links of a topology file to Mininet's graph."""
        topology, addressing, shaping = Topology.load(Path(file)), Addressing(), _Shaping()
        routes, switch = Routes.over(topology), choose_switch(topology.switch)
        offload = not any(map(needs_single_frames, topology.links.values()))
        for site in topology.sites:
            hops = routes.next_hops(site).items()
            ways = {addressing.lan(target): addressing.next_hop(site, hop) for target, hop in hops}
            gateway = addressing.router(site)
            self.addHost(f"{site}-r", cls=_TopoRouter, gateway=gateway, ways=ways, switch=switch, shaping=shaping)
        transport = Transport(fitted=True, hosts=lambda: ())
        transport.follow(topology, routes, {name: link.state for name, link in topology.links.items()})

        def fit(host: NamespaceHost) -> None:
            if not offload:
                send_single_frames(host)
            transport.fit(host)

        for worker in topology.workers:
            self._add_worker(worker, topology.lan, fit, addressing, shaping)
        for link in topology.links.values():
            if link.source < link.target:
                self._add_pair(topology, link.source, link.target, addressing, shaping)

    def _add_worker(self, worker: Worker, lan: Lan, fit: Fit, addressing: Addressing, shaping: _Shaping) -> None:
        index = int(worker.name.rpartition("-w")[2])
        self.addHost(worker.name, cls=_TopoWorker)
        self.addLink(
            f"{worker.site}-r",
            worker.name,
            cls=_AccessLink,
            intfName1=f"w{index}",
            intfName2="eth0",
            address=addressing.worker(worker.site, index),
            gateway=addressing.router(worker.site),
            lan=lan,
            fit=fit,
            shaping=shaping,
        )

    def _add_pair(self, topology: Topology, a: str, b: str, addressing: Addressing, shaping: _Shaping) -> None:
        names = (link_name(a, b), link_name(b, a))
        self.addLink(
            f"{a}-r",
            f"{b}-r",
            cls=_WanLink,
            intfName1=b,
            intfName2=a,
            addresses=(addressing.wan(a, b), addressing.wan(b, a)),
            states={name: topology.links[name].at(0.0) for name in names},
            shaping=shaping,
        )


class _Shaping:
    """The shaper of a Topo's links, opened with the first link and closed with the last."""

    def __init__(self) -> None:
        self._wiring: Wiring | None = None
        self._links: set[str] = set()

    def wiring(self, *links: str) -> Wiring:
        """Return the wiring to which these links are added."""
        if self._wiring is None:
            self._wiring = Wiring(open_shaper())
        self._links.update(links)
        return self._wiring

    def bring_up(self) -> None:
        """Shape and bring up the links that were added. Links that are already up stay unchanged."""
        if self._wiring is not None:
            self._wiring.bring_up()

    def close(self, *links: str) -> None:
        self._links.difference_update(links)
        if self._wiring is None:
            return
        for link in links:
            self._wiring.shaper.detach(link)
        if not self._links:
            self._wiring.shaper.close()
            self._wiring = None


class _TopoRouter(Router):
    def __init__(
        self,
        name: str,
        gateway: IPv4Interface,
        ways: Mapping[IPv4Network, IPv4Address],
        switch: SwitchName,
        shaping: _Shaping,
        **params: Any,
    ) -> None:
        super().__init__(name, **params)
        self._ways, self._shaping = ways, shaping
        set_up_router(self, gateway, switch)

    def config(self, **_: Any) -> dict[str, Any]:
        """Bring up the links and set the routes. Mininet calls this when all links have been added."""
        self._shaping.bring_up()
        for lan, hop in self._ways.items():
            set_route(self, lan, hop)
        return {}


class _TopoWorker(NamespaceHost):
    def config(self, **_: Any) -> dict[str, Any]:
        return {}  # the worker's link has configured it


class _AccessLink(Veth):
    def __init__(
        self,
        router: Router,
        host: NamespaceHost,
        address: IPv4Interface,
        gateway: IPv4Interface,
        lan: Lan,
        fit: Fit,
        shaping: _Shaping,
        **params: Any,
    ) -> None:
        super().__init__(router, host, **params)
        self._name, self._shaping = link_name(router.name.removesuffix("-r"), host.name), shaping
        shaping.wiring(self._name).plug_in(self, self._name, address, gateway, lan)
        fit(host)

    def stop(self) -> None:
        """Detach the link; its interfaces go with their nodes' namespaces."""
        self._shaping.close(self._name)


class _WanLink(Veth):
    def __init__(
        self,
        router: Router,
        other: Router,
        addresses: tuple[IPv4Interface, IPv4Interface],
        states: Mapping[str, LinkState],
        shaping: _Shaping,
        **params: Any,
    ) -> None:
        super().__init__(router, other, **params)
        self._names, self._shaping = tuple(states), shaping
        shaping.wiring(*self._names).join_routers(self, addresses, states.items())

    def stop(self) -> None:
        """Detach both links; their interfaces go with their nodes' namespaces."""
        self._shaping.close(*self._names)
