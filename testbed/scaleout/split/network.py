"""A network that is split, as those who run it see one: links and their states, counters, routes; hosts do the rest.

Nothing of the network is in this process. What is asked of it goes to the hosts, a link's changes to the host where it
begins, and is known here as it is on one machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from testbed.emulation.network.difference import Difference
from testbed.emulation.network.network import Network
from testbed.emulation.network.routing import Routes
from testbed.emulation.network.share import OWN
from testbed.emulation.network.swap import BeforeRoutes, NetworkSwap
from testbed.emulation.process import ProcessIdentity
from testbed.link import link_ends, link_name
from testbed.scaleout.split.links import SplitLinks
from testbed.scaleout.split.part import PartFacts
from testbed.scaleout.split.plan import SplitPlan
from testbed.scaleout.split.shaper import HostsShaper
from testbed.scaleout.split.split import HostSamples, SplitHosts
from testbed.spec.topology import Topology


class SplitNetwork(Network):
    """A network of which every part is on a host."""

    links_in_force: SplitLinks

    def __init__(
        self, name: str, plan: SplitPlan, hosts: SplitHosts, samples: HostSamples, parts: Mapping[str, PartFacts]
    ) -> None:
        """ShapingError where hosts do not shape alike."""
        shaper = HostsShaper(parts, samples)
        super().__init__(name, plan.topologies[0], shaper, lambda *_: None, share=plan.share("", name, OWN))
        self.switch = next(iter(parts.values())).switch
        self.links_in_force = SplitLinks(shaper, hosts, plan.placing.host_of)
        self._hosts, self._samples = hosts, samples

    def build(self) -> None:
        self._hosts.each("part.build")
        for link in self.topology.links.values():
            self.links_in_force.add(link)
        self.set_routes(Routes.over(self.topology))

    def join(self, holders: Mapping[str, ProcessIdentity]) -> None:
        """Hosts give their workers their places."""

    def leave(self, workers: Iterable[str]) -> None:
        """Hosts take them off."""

    def arrived_bytes(self) -> dict[str, int]:
        return dict(self._samples.merged("bytes"))

    def take(self, a: str, b: str, up: bool) -> None:
        self._hosts.each("part.take", lambda _: (a, b, up))
        self.links_in_force.take((link_name(a, b), link_name(b, a)), up)
        self.set_routes(Routes.over(self.topology, self.links_in_force.down))

    def swap(
        self,
        topology: Topology,
        before_routes: BeforeRoutes = lambda _: None,
        holders: Mapping[str, ProcessIdentity] | None = None,
    ) -> NetworkSwap:
        """Each step on every host before the next on any."""
        began, links = time.monotonic(), Difference.between(self.topology, topology).links
        if {one.name for one in topology.workers} != {one.name for one in self.topology.workers}:
            raise ValueError(f"{topology.file}: a swap keeps the workers of {self.topology.file}; it has others")
        self.addressing.know(topology.sites, {frozenset(link_ends(name)) for name in topology.links})
        step: Callable[..., Any] = self._hosts.each
        try:
            step("part.swap", lambda _: ("build", topology))
            for name in links.added:
                self.links_in_force.add(topology.links[name])
            before_routes(set(links.added))
            step("part.swap", lambda _: ("move routes",))
        except Exception:
            step("part.swap", lambda _: ("undo",))
            for name in links.added:
                self.links_in_force.remove(name)
            raise
        step("part.swap", lambda _: ("remove",))
        self.links_in_force.configure(topology.links[name] for name in links.changed)
        for name in links.removed:
            self.links_in_force.remove(name)
        self.topology = topology
        self.set_routes(Routes.over(topology, self.links_in_force.down))
        return NetworkSwap(links.added, links.removed, links.changed, seconds=time.monotonic() - began)
