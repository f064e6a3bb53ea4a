"""A host's part of a split network: its sites, with the links that begin there and the ends of tunnels.

    open -> build -> measured from outside -> start workers -> begin at a moment -> change, swap, sample -> end

The parts of a network know nothing of each other. The holder of all parts (see `hosts`) has every part take a step
before any part takes the next.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from testbed.emulation.containers.fleet import ContainerRequest, Fleet
from testbed.emulation.links.links import Observer
from testbed.emulation.links.probe import LinkFidelity, measure_links
from testbed.emulation.network.holders import Holders, Namespaces, idle_requests
from testbed.emulation.network.network import Network
from testbed.emulation.network.share import Share
from testbed.emulation.network.swap import SwapTransaction
from testbed.emulation.shaping import Shaper
from testbed.emulation.shaping.base import distorted_by_offload
from testbed.emulation.testbed import Backend, Testbed
from testbed.link import LinkState, link_ends
from testbed.scaleout.split.underlay import Pair, TunnelShaper, check_delay
from testbed.spec.event import LinkChange
from testbed.spec.topology import Link, SwitchName, Topology
from testbed.telemetry.host import CpuMeter

#: The steps of a network swap: build what is new, move the routes, remove what is gone; or undo.
SwapStep = Literal["build", "move routes", "remove", "undo"]


@dataclass(frozen=True, slots=True)
class PartSettings:
    """The settings that all parts of a network share."""

    backend: Backend = "auto"
    fit_transport: bool = True
    workers: Literal["containers", "namespaces"] = "containers"


@dataclass(frozen=True)
class PartRequest:
    """The network, and a host's part in it."""

    name: str
    topology: Topology
    share: Share
    #: The seconds that are taken off the delay of every link cut between two hosts, by the pair of hosts.
    floors: Mapping[Pair, float] = field(default_factory=dict)
    settings: PartSettings = PartSettings()

    def floor_s(self, link: str) -> float:
        """Return the seconds that are taken off a link's delay; 0 where both of its sites are on one host."""
        hosts = frozenset(self.share.host_of[site] for site in link_ends(link) if site in self.share.host_of)
        return self.floors[hosts] if len(hosts) > 1 else 0.0


@dataclass(frozen=True)
class PartFacts:
    """A host's part, as a manifest records it."""

    host: str
    sites: tuple[str, ...]
    backend: str
    realtime_shaping: bool | None
    switch: SwitchName
    kernel: str
    mtu: int


class PartTestbed(Testbed):
    """A testbed with a host's share of a network, whose cut links are shaped over the hosts' network."""

    def __init__(self, request: PartRequest, observer: Observer) -> None:
        super().__init__(
            request.topology,
            name=request.name,
            backend=request.settings.backend,
            workers=request.settings.workers,
            fit_transport=request.settings.fit_transport,
            observer=observer,
        )
        self._request = request

    def _network(self, topology: Topology, shaper: Shaper) -> Network:
        request = self._request
        over = TunnelShaper(shaper, request.floor_s)
        return Network(self.name, topology, over, self._observer, request.settings.fit_transport, request.share)


class HostPart:
    """One host's part. As a context manager it is built on entry and removed on exit.

    Times are in seconds on this host's monotonic clock.
    """

    #: The workers' containers or namespaces, once they were started.
    held: Holders

    def __init__(self, request: PartRequest, observer: Observer = lambda *_: None) -> None:
        """Prepare a part; `observer` is told of each state put in force, as by a Testbed."""
        self.request = request
        self.testbed = PartTestbed(request, observer)
        self._swap: SwapTransaction | None = None
        self._cpu = CpuMeter()

    def __enter__(self) -> HostPart:
        try:
            self.open()
            self.build()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def network(self) -> Network:
        """The part's network."""
        return self.testbed.network

    # Building -----------------------------------------------------------------------------------------------------

    def open(self) -> PartFacts:
        """Take the network's name on this host and find a shaping backend.

        Raises:
            FileExistsError: A network of this name is up.
            EmulationError: This host can't emulate the part.
        """
        self.testbed.open()
        network, share = self.network, self.request.share
        return PartFacts(
            host=share.host,
            sites=tuple(filter(share.has, self.request.topology.sites)),
            backend=network.shaper.name,
            realtime_shaping=network.shaper.realtime,
            switch=network.switch,
            kernel=platform.release(),
            mtu=share.mtu,
        )

    def build(self) -> None:
        """Build this host's routers, links and ends of tunnels."""
        self.testbed.build()

    def measure(self, wanted: Collection[str]) -> dict[str, LinkFidelity]:
        """Measure the idle links among `wanted` that lie within this host."""
        has = self.request.share.has
        links = self.network.links_in_force.states()
        inner = [name for name in links if name in wanted and all(map(has, link_ends(name)))]
        return measure_links(self.network, lambda _: None, inner)

    def start(self, requests: Iterable[ContainerRequest] | None = None) -> None:
        """Start this host's workers: as requested, or, without requests, idle until programs are started in them."""
        own = [worker for worker in self.network.topology.workers if self.request.share.has(worker.site)]
        if self.request.settings.workers == "namespaces":
            self.held = Namespaces()
        else:
            self.held = Fleet.connected(self.testbed.name, self.testbed.control)
        self.testbed.start(self.held, idle_requests(own) if requests is None else requests)

    def begin(self, at_s: float) -> None:
        """Replay this part's traces from a future moment on."""
        self.testbed.replay.start(self._traced(), at_s)

    def pause(self) -> None:
        """Hold this part's traces."""
        self.testbed.replay.pause()

    def resume(self) -> None:
        """Continue this part's traces from where they were held."""
        self.testbed.replay.resume(self._traced())

    def end(self) -> None:
        """Remove the part. A second call does nothing."""
        self.testbed.close()

    # Changing -----------------------------------------------------------------------------------------------------

    def change(self, change: LinkChange) -> LinkState:
        """Change a link that begins here, and return the state then in force.

        Raises:
            KeyError: The link does not begin here.
            ShapingError: The delay is below the link's floor; nothing has changed.
        """
        if change.delay is not None:
            check_delay(change.link, change.delay, self.request.floor_s(change.link))
        self.network.links_in_force.change(change)
        return self.network.links_in_force.states()[change.link]

    def note(self, link: str, state: LinkState) -> None:
        """Fit the transport of this host's workers to the new state of a link that begins on another host."""
        self.network.transport.note(link, state)
        if distorted_by_offload(state):
            self.network.use_single_frames()

    def take(self, a: str, b: str, up: bool) -> None:
        """Take a physical pair down or up, on whichever hosts it is; this host's routes follow."""
        self.network.take(a, b, up)

    def swap(self, step: SwapStep, topology: Topology | None = None) -> None:
        """Take one step of a swap to another network; "build" needs that network's topology.

        Packets take the new ways after "move routes". Until "remove" everything can be undone. After an error the
        next step must be "undo".
        """
        if step == "build":
            assert topology is not None
            self._swap = SwapTransaction(self.network, topology, {})
        if self._swap is None:
            return  # the swap never began here, so there is nothing to undo
        match step:
            case "build":
                self._swap.build()
            case "move routes":
                self._swap.move_routes()
                self.testbed.replay.follow(self._traced())
            case "remove":
                self._swap.remove()
                self._swap = None
            case "undo":
                self._swap.undo()
                self.testbed.replay.follow(self._traced())
                self._swap = None

    def _traced(self) -> list[Link]:
        """Return the links that are replayed here."""
        links = self.network.topology.links.values()
        return [link for link in links if link.trace is not None and self.request.share.has_link(link.name)]

    # Asking -------------------------------------------------------------------------------------------------------

    def lateness(self) -> dict[str, list[float]]:
        """Return by how many seconds each trace row came late, by link."""
        return self.network.links_in_force.lateness()

    def sample(self) -> dict[str, Any]:
        """Return this moment's figures of the part.

        Returns:
            clock_s: The moment, on this host's monotonic clock.
            bytes: The bytes that have arrived over each link that ends here.
            counters: The counters of each link that begins here.
            cpu: This host's busy share since the last sample.
            broken: The failure of the shaper or the replay, or None.
        """
        counters, states = self.network.shaper.counters(), self.network.links_in_force.states()
        own = states.keys() & counters.keys()
        broken = self.network.shaper.failure() or self.testbed.replay.failure
        return {
            "clock_s": time.monotonic(),
            "bytes": self.network.arrived_bytes(),
            "counters": {name: counters[name] for name in own},
            "cpu": round(self._cpu.read(), 4),
            "broken": str(broken) if broken else None,
        }
