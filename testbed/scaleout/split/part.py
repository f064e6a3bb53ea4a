"""A host's part of a network that is split, as one object: whatever starts it (a process of its own, another one's
thread, an actor of a cluster) speaks to it in the same words.

    open -> build -> measured from outside -> start workers -> begin at a moment -> change, swap, sample -> end

The parts of a network know nothing of each other. Who holds them all (see `split`) has every one take a step before any
takes the next.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from testbed.emulation.containers.fleet import ContainerRequest, Fleet
from testbed.emulation.links.links import Observer
from testbed.emulation.links.probe import LinkFidelity, measure_links
from testbed.emulation.network.holders import Holders, Namespaces, idle
from testbed.emulation.network.network import Network
from testbed.emulation.network.swap import SwapTransaction
from testbed.emulation.shaping.base import distorted_by_offload
from testbed.link import LinkState, link_ends
from testbed.scaleout.split.testbed import PartRequest, PartTestbed
from testbed.spec.event import LinkChange
from testbed.spec.topology import Link, SwitchName, Topology
from testbed.telemetry.host import CpuMeter

#: The steps of a network swap: what is new is built, routes move, what is gone is removed; or all is as it was.
SwapStep = Literal["build", "move routes", "remove", "undo"]


@dataclass(frozen=True)
class PartFacts:
    """What a manifest says of a host's part."""

    host: str
    sites: tuple[str, ...]
    backend: str
    realtime_shaping: bool | None
    switch: SwitchName
    kernel: str
    mtu: int


class HostPart:
    """One host's part. A context manager: entered it is built, left nothing of it is there.

    Times are in seconds on this host's monotonic clock. What holds its workers is `held`, once they were started.
    """

    held: Holders

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

    def measure(self, wanted: Collection[str]) -> dict[str, LinkFidelity]:
        """How near those of the links are that lie within this host to what was asked, while nobody uses them."""
        has = self.request.share.has
        links = self.network.links_in_force.states()
        inner = [name for name in links if name in wanted and all(map(has, link_ends(name)))]
        return measure_links(self.network, lambda _: None, inner)

    def start(self, requests: Iterable[ContainerRequest] | None = None) -> None:
        """Start this host's workers: what is asked for, or what waits for programs to be started in it."""
        own = [worker for worker in self.network.topology.workers if self.request.share.has(worker.site)]
        wanted = idle(own) if requests is None else requests
        self.held = self._holders()
        self.testbed.start(self.held, wanted)

    def _holders(self) -> Holders:
        if self.request.settings.workers == "namespaces":
            return Namespaces()
        return Fleet.connected(self.testbed.name, self.testbed.control)

    def begin(self, at_s: float) -> None:
        """Replay this part's traces from a moment on that is to come."""
        self.testbed.replay.start(self._traced(), at_s)

    def pause(self) -> None:
        """Hold this part's traces."""
        self.testbed.replay.pause()

    def resume(self) -> None:
        """Let them go on from where they were held."""
        self.testbed.replay.resume(self._traced())

    def end(self) -> None:
        """Take all of it away. A second time does nothing."""
        self.testbed.close()

    # Changing -----------------------------------------------------------------------------------------------------

    def change(self, change: LinkChange) -> LinkState:
        """Other values for a link that begins here; the state in force then.

        KeyError for one that does not; ShapingError for a delay below the link's floor, and nothing has changed.
        """
        self.request.check(change)
        self.network.links_in_force.change(change)
        return self.network.links_in_force.states()[change.link]

    def note(self, link: str, state: LinkState) -> None:
        """A link that begins on another host has this state now: what workers here send is to fit it as well."""
        self.network.transport.note(link, state)
        if distorted_by_offload(state):
            self.network.use_single_frames()

    def take(self, a: str, b: str, up: bool) -> None:
        """A physical pair down or up, wherever it is; this host's routes follow."""
        self.network.take(a, b, up)

    def swap(self, step: SwapStep, topology: Topology | None = None) -> None:
        """One step to another network, which is named in the first. Raises what went wrong; then `undo` is next.

        Up to the third all can be undone; after the second packets take the new network's ways.
        """
        if step == "build":
            assert topology is not None
            self._swap = SwapTransaction(self.network, topology, {})
        if self._swap is None:
            return  # it never began here, so there is nothing to be undone
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
        """The links that are replayed here."""
        links = self.network.topology.links.values()
        return [link for link in links if link.trace is not None and self.request.share.has_link(link.name)]

    # Asking -------------------------------------------------------------------------------------------------------

    def lateness(self) -> dict[str, list[float]]:
        """Seconds late, of each row of a trace that came to be in force, by link."""
        return self.network.links_in_force.lateness()

    def sample(self) -> dict[str, Any]:
        """What has arrived over links that end here, how busy those were that begin here, how busy this host was since
        the last sample, and what broke, if anything did."""
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
