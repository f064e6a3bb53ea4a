"""A testbed: one network, and all that belongs to it. Up on entry, and nothing left of it on leaving.

name -> shaper -> routers and links -> workers -> replay
  everything taken away, in the reverse order  <-'
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Literal

from testbed.emulation import label
from testbed.emulation.containers.fleet import ContainerRequest, Fleet, ProgramContainers
from testbed.emulation.errors import EmulationError
from testbed.emulation.links.links import Observer
from testbed.emulation.links.live import LiveLinks
from testbed.emulation.links.probe import LinkFidelity, measure_links
from testbed.emulation.links.replay import Replay
from testbed.emulation.network.difference import Difference
from testbed.emulation.network.holders import Holders, Namespaces, expected_to_start, idle_requests
from testbed.emulation.network.names import Names
from testbed.emulation.network.network import Network
from testbed.emulation.shaping import Shaper, open_shaper
from testbed.spec.topology import Topology, Worker
from testbed.spec.units import count

#: What shapes the links: the kernel's netem, a process of ours, or the first of them that works here.
Backend = Literal["auto", "netem", "userspace"]

#: Where workers are: in a container each, which may be described, or in a network namespace each, and nothing more.
Workers = Literal["containers", "namespaces"] | ProgramContainers

#: A step of the work: its title, told while it goes on.
Step = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class SwapResult:
    """What a swap did. `lost_packets` are those that unchanged links dropped from a full queue meanwhile,
    `unroutable_packets` those for which a router had no route."""

    difference: Difference
    unchanged_links: int
    seconds: float
    lost_packets: int
    unroutable_packets: int


def _silently(_: str) -> AbstractContextManager[None]:
    return nullcontext()


class Testbed:
    """A wide-area network that is up while its context is, with its workers, and its traces replayed.

        with Testbed("topologies/quickstart.yaml") as testbed:
            testbed.links["toronto->tokyo"].change(rate="5mbit")
            network = testbed.network
            print(network["toronto-w0"].cmd("ping -c 3", network["tokyo-w0"].IP()))

    Whatever ends the context, all that was made is taken away, and whatever was started in the network's hosts is
    ended. Programs that this process starts meanwhile carry the network's label, and end with it too.

    Who has something to do in between, as a run has, takes the steps one by one and ends with `close`:
    `open`, `build`, `start`, and the replay's own start.
    """

    __test__ = False  # pytest would take it for a class of tests

    network: Network
    replay: Replay
    #: Whether budgets of hosts were seen to as sites were placed on them.
    budgets_checked: ClassVar[bool] = False

    def __init__(
        self,
        topology: Topology | str | Path,
        *,
        name: str | None = None,
        backend: Backend = "auto",
        workers: Workers = "containers",
        fit_transport: bool = True,
        observer: Observer = lambda *_: None,
        step: Step = _silently,
    ) -> None:
        """A topology, or the file it is in. `name` is the topology's own, unless another is given: two networks of the
        same name cannot be up at once. Unless `fit_transport` is off, workers' TCP buffers fit the network's paths.

        `observer` is told of each state put in force: seconds on the monotonic clock when it was, link, state; `step`
        opens a context for each step of the work, by its title. SpecError when there is something wrong in the file,
        or containers may not read what they are to see.
        """
        self._topology = topology if isinstance(topology, Topology) else Topology.load(Path(topology))
        self.name = name or self._topology.name
        self._backend: Backend = backend
        self._programs = ProgramContainers() if workers == "containers" else workers
        if self._programs != "namespaces":
            self._programs.check()
        self._fit_transport = fit_transport
        self._observer = observer
        self._step = step
        self._stack = ExitStack()

    def __enter__(self) -> Testbed:
        """All of it. EmulationError when this machine cannot do it, FileExistsError when a network of this name is up;
        then nothing is left."""
        with ExitStack() as undo:
            undo.callback(self.close)
            holders = self._own_holders()
            self.open()
            self.build()
            where = "namespaces" if self._programs == "namespaces" else "containers"
            with self._step(f"{count(len(self._topology.workers), 'worker')} in {where}"), expected_to_start():
                self.start(holders, self._idle(self._topology.workers))
            self.replay.start(self._topology.links.values())
            undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Step by step -------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Make the name ours, and find what shapes links. FileExistsError, ShapingError, SwitchError."""
        if os.geteuid() != 0:
            raise EmulationError("building a network needs root; run the command with sudo")
        self._stack.enter_context(label.labelled(self.name))
        self.control.mkdir(mode=0o700)
        self._stack.callback(label.kill_processes, self.name)  # what was started in its hosts ends with it
        with self._step("shaping backend, probed"):
            shaper = self._stack.enter_context(open_shaper(self._backend))
        self.network = self._network(self._topology, shaper)
        self._stack.callback(self.network.stop)
        self.replay = Replay(self.network.links_in_force)
        self._stack.callback(self.replay.stop)

    def _network(self, topology: Topology, shaper: Shaper) -> Network:
        return Network(self.name, topology, shaper, self._observer, self._fit_transport)

    def build(self) -> None:
        """Make routers and links; they are as configured, or as their traces begin. ShapingError, SwitchError."""
        sites, links = count(len(self._topology.sites), "site"), count(len(self._topology.links), "directed link")
        with self._step(f"{sites}, {links}, {self.network.shaper.name} shaping"):
            self.network.build()

    def start(self, holders: Holders, requests: Iterable[ContainerRequest]) -> None:
        """Start what holds the workers, one request each, and give them their places on the network.

        Raises what the holders do: ContainerDied for a program that ended at once.
        """
        self._holders = holders
        self._stack.callback(holders.remove)
        holders.remove()  # what a killed one left would be in the way
        self.network.names = Names(self.control)
        self.network.publish_names(self.network.topology)
        self.network.join(holders.start(requests))

    def close(self) -> None:
        """Take all of it away. A second time does nothing."""
        self._stack.close()

    def _own_holders(self) -> Holders:
        if self._programs == "namespaces":
            return Namespaces()
        with self._step("Docker engine and worker image"):
            return Fleet.connected(self.name, self.control, self._programs)

    def _idle(self, workers: Iterable[Worker]) -> Iterator[ContainerRequest]:
        return idle_requests(workers, None if self._programs == "namespaces" else self._programs.files)

    # What of it is other where a network is split over several hosts -------------------------------------------------

    def measure(self, links: Iterable[str] | None = None) -> dict[str, LinkFidelity]:
        """How near all links, or these, are to what was asked, measured while nobody uses them; see `measure_links`."""
        return measure_links(self.network, lambda _: None, links)

    def record(self) -> dict[str, Any]:
        """What more a manifest says of where the network is."""
        return {}

    def host_reasons(self) -> list[str]:
        """Why figures cannot be trusted, of hosts beside this one and what is between them."""
        return []

    # Asking and changing ------------------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        """Where the network keeps its sockets and its state while it is up."""
        return label.state_folder(self.name)

    @property
    def control(self) -> Path:
        """The folder with a folder for each container, which that one sees as `/run/testbed`. No other user gets in."""
        return label.control_folder(self.name)

    @property
    def links(self) -> LiveLinks:
        """The directed links that are up, by name; there each can be changed."""
        return LiveLinks(self.network)

    def swap(self, topology: Topology | str | Path) -> SwapResult:
        """Become another network by difference: what stays the same keeps its connections.

        A worker whose limits change gets another container. Raises what went wrong; then the network is as it was,
        but for its changed workers' connections.
        """
        began = time.monotonic()
        if not isinstance(topology, Topology):
            topology = Topology.load(Path(topology))
        old = self.network.topology
        difference = Difference.between(old, topology)
        unchanged = old.links.keys() - set(difference.links.removed) - set(difference.links.changed)
        staying = [site for site in old.sites if site in topology.sites]
        drops, unroutable = self._queue_drops(unchanged), self._unroutable(staying)

        new = {*difference.workers.added, *difference.workers.changed}
        with self._holders.replacing(difference.workers.changed):
            with expected_to_start():
                fresh = self._holders.start(self._idle(worker for worker in topology.workers if worker.name in new))
            self.network.swap(topology, holders=fresh)
        self.replay.follow(topology.links.values())
        self._holders.drop(difference.workers.removed)
        return SwapResult(
            difference,
            len(unchanged),
            seconds=time.monotonic() - began,
            lost_packets=self._queue_drops(unchanged) - drops,
            unroutable_packets=self._unroutable(staying) - unroutable,
        )

    def _queue_drops(self, links: Iterable[str]) -> int:
        counters = self.network.shaper.counters()
        return sum(counters[name].dropped_queue for name in links)

    def _unroutable(self, sites: Iterable[str]) -> int:
        return sum(self.network.router(site).unroutable_packets() for site in sites)
