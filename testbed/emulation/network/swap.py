"""A network swap by difference, ordered so that no route ever leads to a missing link.

new parts are built -> routes move over -> old parts are removed
          `----------------`--> a failure up to here is undone
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from testbed.emulation.network.difference import Difference
from testbed.emulation.network.routing import Routes
from testbed.emulation.network.wiring import access_state
from testbed.emulation.process import ProcessIdentity
from testbed.emulation.shaping.tc import limit_rate
from testbed.link import link_ends, link_name
from testbed.spec.topology import Lan, Topology

if TYPE_CHECKING:
    from testbed.emulation.network.network import Network

#: Called with the names of the new links, when they exist and no packet passes them yet.
BeforeRoutes = Callable[[set[str]], None]


@dataclass(frozen=True, slots=True)
class NetworkSwap:
    """The links that a swap added, removed and changed. `seconds` is the time until all of it was in force."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    seconds: float


def pairs_of(topology: Topology) -> set[frozenset[str]]:
    """Return the two sites of each physical pair of links."""
    return {frozenset(link_ends(name)) for name in topology.links}


class SwapTransaction:
    """One swap of a network to another topology. `holders` maps workers that are new or get another container."""

    def __init__(self, network: Network, topology: Topology, holders: Mapping[str, ProcessIdentity]) -> None:
        self._network = network
        self._old = network.topology
        self._new = topology
        self._holders = holders
        self._difference = Difference.between(self._old, topology)
        network.addressing.know(topology.sites, pairs_of(topology))
        changed = self._difference.workers.changed if holders else ()
        self._holders_before = {name: network.container(name).holder for name in changed}

    def make(self, before_routes: BeforeRoutes) -> NetworkSwap:
        """Carry the swap out. Re-raises any failure; a failure before the routes have moved rolls everything back."""
        began = time.monotonic()
        links = self._difference.links
        try:
            self.build()
            before_routes(set(links.added))
            self.move_routes()
        except Exception:
            self.undo()
            raise
        self.remove()
        return NetworkSwap(links.added, links.removed, links.changed, seconds=time.monotonic() - began)

    # Steps. In a network over several hosts, all hosts finish one step before any begins the next. ------------------

    def build(self) -> None:
        """Build what the new network adds, and move workers to their new containers."""
        network = self._network
        self._remove_added()  # an earlier swap may have failed as it removed them
        network.publish_names(self._old, self._new)
        for site in self._difference.sites.added:
            network.add_site(site)
        network.leave(name for name in self._difference.workers.changed if name in self._holders)
        if self._difference.lan:
            self._change_lan(self._new.lan)
        network.add(self._new, self._missing(self._new, self._holders), pairs_of(self._new) - pairs_of(self._old))

    def move_routes(self) -> None:
        """Configure the remaining links as in the new network, and move the routes."""
        network, changed = self._network, self._network.share.own(self._difference.links.changed)
        network.links_in_force.configure(self._new.links[name] for name in changed)
        network.topology = self._new
        network.reroute()

    def remove(self) -> None:
        """Remove what only the old network had."""
        network = self._network
        network.publish_names(self._new)
        for pair in pairs_of(self._old) - pairs_of(self._new):
            network.remove_pair(pair)
        network.leave(self._difference.workers.removed)
        for site in filter(network.share.has, self._difference.sites.removed):
            network.delHost(network.router(site))

    def undo(self) -> None:
        """Undo all steps before `remove`.

        Changes that were requested of links that the swap changed are lost.
        """
        network, difference = self._network, self._difference
        network.leave([*difference.workers.added, *self._holders_before])
        network.topology = self._old
        network.publish_names(self._old)
        changed = network.share.own(difference.links.changed)
        network.links_in_force.configure(self._old.links[name] for name in changed)
        if difference.lan:
            self._change_lan(self._old.lan)
        network.add(self._old, self._missing(self._old, self._holders_before))
        network.routes = Routes({})  # some routes may have moved, so all are set again
        network.reroute()
        self._remove_added()

    def _remove_added(self) -> None:
        """Remove what the new network alone has, as far as it is there."""
        network, difference = self._network, self._difference
        network.leave(difference.workers.added)
        for pair in pairs_of(self._new) - pairs_of(self._old):
            network.remove_pair(pair)
        for site in difference.sites.added:
            if f"{site}-r" in network.nameToNode:
                network.delHost(network.router(site))

    def _missing(self, topology: Topology, holders: Mapping[str, ProcessIdentity]) -> dict[str, ProcessIdentity]:
        """Return the topology's workers that are not on the network. Raises KeyError if `holders` lacks one."""
        there, share = self._network.nameToNode, self._network.share
        missing = (worker.name for worker in topology.workers if worker.name not in there and share.has(worker.site))
        return {name: holders[name] for name in missing}

    def _change_lan(self, lan: Lan) -> None:
        network = self._network
        workers = [worker for worker in self._old.workers if worker.name in network.nameToNode]
        network.shaper.apply({link_name(worker.site, worker.name): access_state(lan) for worker in workers})
        for worker in workers:
            host = network.container(worker.name)
            host.netlink.apply(limit_rate(host.netlink.index("eth0"), lan.rate))
