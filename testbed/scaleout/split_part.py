"""A host's part of a network that is split, as one object: whatever starts it (a process of its own, another one's
thread, an actor of a cluster) speaks to it in the same words.

    open -> build -> measured from outside -> start workers -> begin at a moment -> change, swap, sample -> end

The parts of a network know nothing of each other. Who holds them all (see `split`) has every one take a step before any
takes the next.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from testbed.emulation.containers import ContainerRequest, Fleet
from testbed.emulation.holders import Holders, Namespaces, idle
from testbed.emulation.links import Observer
from testbed.emulation.network import Network
from testbed.emulation.probe import LinkFidelity, measure_links
from testbed.emulation.share import Share
from testbed.emulation.shaping import Shaper
from testbed.emulation.swap import SwapTransaction
from testbed.emulation.testbed import Backend, Testbed
from testbed.link import LinkState, link_ends
from testbed.scaleout.placing import Pair
from testbed.scaleout.tunnel import TunnelShaper
from testbed.spec.event import LinkChange
from testbed.spec.topology import Topology
from testbed.telemetry.host import CpuMeter


@dataclass(frozen=True)
class PartRequest:
    """What a host is told of the network and of its part in it.

    `floors` has, for each pair of hosts, the seconds that are taken off the delay of every link cut between them.
    """

    name: str
    topology: Topology
    share: Share
    floors: Mapping[Pair, float] = field(default_factory=dict)
    backend: Backend = "auto"
    fit_transport: bool = True
    workers: Literal["containers", "namespaces"] = "containers"

    def floor_s(self, link: str) -> float:
        """What is taken off a link's delay; 0 where both of its sites are on one host."""
        hosts = frozenset(self.share.host_of[site] for site in link_ends(link) if site in self.share.host_of)
        return self.floors[hosts] if len(hosts) > 1 else 0.0


@dataclass(frozen=True)
class PartFacts:
    """What a manifest says of a host's part."""

    host: str
    sites: tuple[str, ...]
    backend: str
    realtime_shaping: bool | None
    switch: str
    kernel: str
    mtu: int


class PartTestbed(Testbed):
    """A testbed that holds a host's share of a network."""

    def __init__(self, request: PartRequest, observer: Observer) -> None:
        super().__init__(
            request.topology,
            name=request.name,
            backend=request.backend,
            workers=request.workers,
            fit_transport=request.fit_transport,
            observer=observer,
        )
        self._request = request

    def _network(self, topology: Topology, shaper: Shaper) -> Network:
        request = self._request
        over = TunnelShaper(shaper, request.floor_s)
        return Network(self.name, topology, over, self._observer, request.fit_transport, request.share)


class HostPart:
    """One host's part. A context manager: entered it is built, left nothing of it is there.

    Times are in seconds on this host's monotonic clock.
    """

    def __init__(self, request: PartRequest, observer: Observer = lambda *_: None) -> None:
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
        """The part, as a network."""
        return self.testbed.network

    # Building -----------------------------------------------------------------------------------------------------

    def open(self) -> PartFacts:
        """Make the name ours on this host, and find what shapes links. FileExistsError, EmulationError."""
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
        """Make this host's routers, links and ends of tunnels."""
        self.testbed.build()

    def measure(self) -> dict[str, LinkFidelity]:
        """How near the links within this host are to what was asked, while nobody uses them."""
        return measure_links(self.network, lambda _: None, self.inner_links())

    def inner_links(self) -> list[str]:
        """The directed links with both ends here."""
        share, links = self.request.share, self.network.links_in_force.states()
        return [name for name in links if all(map(share.has, link_ends(name)))]

    def start(self, requests: Iterable[ContainerRequest] | None = None) -> None:
        """Start this host's workers: what is asked for, or what waits for programs to be started in it."""
        own = [worker for worker in self.network.topology.workers if self.request.share.has(worker.site)]
        wanted = idle(own) if requests is None else requests
        self.testbed.start(self.holders(), wanted)

    def holders(self) -> Holders:
        """What holds this host's workers."""
        if self.request.workers == "namespaces":
            return Namespaces()
        return Fleet.connected(self.testbed.name, self.testbed.control)

    def begin(self, at_s: float) -> None:
        """Replay this part's traces from a moment on that is to come."""
        links = self.network.topology.links.values()
        self.testbed.replay.start([link for link in links if self.request.share.has_link(link.name)], at_s)

    def end(self) -> None:
        """Take all of it away. A second time does nothing."""
        self.testbed.close()

    # Changing -----------------------------------------------------------------------------------------------------

    def change(self, change: LinkChange) -> LinkState:
        """Other values for a link that begins here; the state in force then. KeyError, ShapingError."""
        self.network.links_in_force.change(change)
        return self.network.links_in_force.states()[change.link]

    def note(self, link: str, state: LinkState) -> None:
        """A link that begins on another host has this state now: workers' buffers here are to fit it as well."""
        self.network.transport.note(link, state)

    def take(self, a: str, b: str, up: bool) -> None:
        """A physical pair down or up, wherever it is; this host's routes follow."""
        self.network.take(a, b, up)

    def build_swap(self, topology: Topology) -> None:
        """First step to another network: what it has more is built, and nothing passes it yet."""
        transaction = SwapTransaction(self.network, topology, {})
        transaction.build()
        self._swap = transaction

    def move_routes(self) -> None:
        """Second step: packets take the new network's ways, and its traces are replayed."""
        assert self._swap is not None
        self._swap.move_routes()
        links = self.network.topology.links.values()
        self.testbed.replay.follow([link for link in links if self.request.share.has_link(link.name)])

    def finish_swap(self) -> None:
        """Third step: what the old network had more is removed."""
        assert self._swap is not None
        self._swap.remove()
        self._swap = None

    def undo_swap(self) -> None:
        """Instead of the third: back to the old network."""
        if self._swap is not None:
            self._swap.undo()
            self._swap = None

    # Asking -------------------------------------------------------------------------------------------------------

    def states(self) -> dict[str, LinkState]:
        """The states in force, of links that begin here."""
        return self.network.links_in_force.states()

    def sample(self) -> dict[str, Any]:
        """What has arrived over links that end here, how busy those were that begin here, and how busy this host was
        since the last sample."""
        counters = self.network.shaper.counters()
        own = self.network.links_in_force.states().keys() & counters.keys()
        return {
            "clock_s": time.monotonic(),
            "bytes": self.network.arrived_bytes(),
            "shaped_bytes": {name: counters[name].bytes for name in own},
            "busy_s": {name: round(counters[name].busy_s, 4) for name in own},
            "cpu": round(self._cpu.read(), 4),
        }

    def lateness(self) -> dict[str, list[float]]:
        """Seconds late, of each row that came to be in force, by link."""
        return self.network.links_in_force.lateness()

    def failure(self) -> str | None:
        """What broke of this part, if anything did."""
        broken = self.network.shaper.failure() or self.testbed.replay.failure
        return str(broken) if broken else None
