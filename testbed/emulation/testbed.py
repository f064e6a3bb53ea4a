"""Testbed: a context manager that builds one network with its workers and live links, and removes all at the end.

name -> shaper -> routers and links -> workers -> replay
      everything is removed in the reverse order  <-'
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from testbed.emulation import label
from testbed.emulation.containers.fleet import ContainerRequest, Fleet, ProgramContainers
from testbed.emulation.errors import EmulationError
from testbed.emulation.interrupt import INTERRUPTS
from testbed.emulation.links.links import Observer
from testbed.emulation.links.probe import LinkFidelity, measure_links
from testbed.emulation.links.replay import Replay
from testbed.emulation.network.difference import Difference
from testbed.emulation.network.holders import Holders, Namespaces, expected_to_start, idle_requests
from testbed.emulation.network.names import Names
from testbed.emulation.shaping import LinkCounters, Shaper, open_shaper
from testbed.link import LinkState, NoSuchLink, find_link, link_ends
from testbed.spec.event import LinkChange
from testbed.spec.model import validate
from testbed.spec.topology import Topology, Worker
from testbed.spec.units import count

if TYPE_CHECKING:  # importing it needs Mininet, which `simulate` and `report` do without
    from testbed.emulation.network.network import Network

#: The link shaper: the kernel's netem, the userspace core, or (`auto`) the first of them that works on this machine.
Backend = Literal["auto", "netem", "userspace"]

#: The workers: one container each, with default or given settings, or one network namespace each and nothing more.
Workers = Literal["containers", "namespaces"] | ProgramContainers

#: Opens a context for one step of the work, given its title.
Step = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class SwapResult:
    """The difference that a network swap made, its duration, and the packets that were lost meanwhile.

    Attributes:
        unchanged_links: The number of links that the swap did not touch.
        lost_packets: Packets that unchanged links dropped from a full queue during the swap.
        unroutable_packets: Packets for which a router had no route during the swap.
    """

    difference: Difference
    unchanged_links: int
    seconds: float
    lost_packets: int
    unroutable_packets: int


@dataclass(frozen=True, slots=True)
class LiveLink:
    """A directed link of a network that is up."""

    name: str
    _network: Network

    @property
    def state(self) -> LinkState:
        """The state in force: `rate_bps` in bit/s of frames, `delay_s` and `jitter_s` in seconds, one way."""
        return self._network.links_in_force.states()[self.name]

    @property
    def counters(self) -> LinkCounters:
        """The packets and bytes that the link has carried and dropped since it was made."""
        return self._network.shaper.counters()[self.name]

    def change(
        self,
        *,
        rate: str | None = None,
        delay: str | None = None,
        jitter: str | None = None,
        loss: str | None = None,
    ) -> LinkState:
        """Change values in place, keep the packets waiting in the link, and return the state in force.

        Values are written as in a topology file: `rate="5mbit"`, `delay="20ms"` (one way), `loss="0.1%"`. Omitted
        values stay. The values override the link's trace until a swap changes the link.

        Raises:
            SpecError: A value is invalid.
        """
        given = {"rate": rate, "delay": delay, "jitter": jitter, "loss": loss}
        values = {name: value for name, value in given.items() if value is not None}
        change = validate(LinkChange, {"link": self.name, **values}, Path(self.name))
        self._network.links_in_force.change(change)
        return self.state

    def take_down(self) -> LinkState:
        """Take down the physical pair of which this link is one direction, update routes, and return the state."""
        return self._take(up=False)

    def bring_up(self) -> LinkState:
        """Bring both directions of the physical pair up, update routes, and return the state."""
        return self._take(up=True)

    def _take(self, up: bool) -> LinkState:
        self._network.take(*link_ends(self.name), up)
        return self.state


class LiveLinks(Mapping[str, LiveLink]):
    """The links that are up, by name: `links["paris->tokyo"]`, `links["paris-tokyo"]` or `links["paris", "tokyo"]`.

    A swap may add and remove links.
    """

    def __init__(self, network: Network) -> None:
        self._network = network

    def __getitem__(self, name: str | Sequence[str]) -> LiveLink:
        """Return the link of a name, `a->b` or `a-b`, or of its two sites. A KeyError lists the links that exist."""
        try:
            return LiveLink(find_link(name, self._network.topology.links), self._network)
        except NoSuchLink as error:
            raise KeyError(str(error)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._network.topology.links)

    def __len__(self) -> int:
        return len(self._network.topology.links)


def _silently(_: str) -> AbstractContextManager[None]:
    return nullcontext()


class Testbed:
    """A wide-area network with workers and replayed traces that is up while the context is open.

        with Testbed("topologies/quickstart.yaml") as testbed:
            testbed.links["toronto->tokyo"].change(rate="5mbit")
            network = testbed.network
            print(network["toronto-w0"].cmd("ping -c 3", network["tokyo-w0"].IP()))

    However the context ends, everything that was made is removed, and every program that was started in the network's
    hosts is killed. Programs that this process starts meanwhile carry the network's label and are killed with it.

    A caller that does something between the steps, as a run does, calls `open`, `build`, `start` and the replay's
    `start` itself, and `close` at the end.
    """

    __test__ = False  # pytest would take it for a class of tests

    network: Network
    replay: Replay
    #: Whether the hosts' budgets were already checked, when sites were assigned to hosts.
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
        """Load the topology. Nothing is built yet.

        Args:
            topology: A topology, or the path of its file.
            name: The network's name, by default the topology's: small letters, digits and dashes. Two networks of one
                name cannot be up at once.
            backend: The shaping backend.
            workers: Containers, containers with these settings, or network namespaces.
            fit_transport: Whether workers' TCP buffers are sized for the network's paths.
            observer: Called for each state put in force: seconds on the monotonic clock, link, state.
            step: Opens a context for each step of the work, given its title.

        Raises:
            SpecError: The file is wrong, or containers may not read the files they are given.
            ValueError: No network can have the name.
            ModuleNotFoundError: Mininet is missing.
        """
        import mininet  # noqa: F401 - a missing Mininet is reported before a worker image is built

        self._topology = topology if isinstance(topology, Topology) else Topology.load(Path(topology))
        self.name = name or self._topology.name
        if not label.is_name(self.name):
            raise ValueError(f"{self.name!r} can't be the name of a network; write small letters, digits and dashes")
        self._backend: Backend = backend
        self._programs = ProgramContainers() if workers == "containers" else workers
        if self._programs != "namespaces":
            self._programs.check()
        self._fit_transport = fit_transport
        self._observer = observer
        self._step = step
        self._stack = ExitStack()

    def __enter__(self) -> Testbed:
        """Build the whole network with its workers and start the replay.

        Raises:
            EmulationError: This machine cannot do it. Nothing is left.
            FileExistsError: A network of this name is up. Nothing is left.
        """
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

    def __exit__(self, *_: object) -> None:
        self.close()

    # Step by step -------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Claim the name and open the shaper.

        Raises:
            FileExistsError: A network of this name is up.
            ShapingError: No shaping backend works, or it can't give a link its jitter.
            SwitchError: The topology's switch does not work.
        """
        if os.geteuid() != 0:
            raise EmulationError("building a network needs root; run the command with sudo")
        self._stack.enter_context(label.labelled(self.name))
        self.control.mkdir(mode=0o700)
        self._stack.callback(label.kill_processes, self.name)  # programs that were started in the hosts
        with self._step("shaping backend, probed"):
            shaper = self._stack.enter_context(open_shaper(self._backend))
        self.network = self._network(self._topology, shaper)
        self._stack.callback(self.network.stop)
        self.replay = Replay(self.network.links_in_force)
        self._stack.callback(self.replay.stop)

    def _network(self, topology: Topology, shaper: Shaper) -> Network:
        from testbed.emulation.network.network import Network

        return Network(self.name, topology, shaper, self._observer, self._fit_transport)

    def build(self) -> None:
        """Build routers and links, configured or at the start of their traces. Raises ShapingError, SwitchError."""
        sites, links = count(len(self._topology.sites), "site"), count(len(self._topology.links), "directed link")
        with self._step(f"{sites}, {links}, {self.network.shaper.name} shaping"):
            self.network.build()

    def start(self, holders: Holders, requests: Iterable[ContainerRequest]) -> None:
        """Start the workers' containers or namespaces, one request each, and attach them to the network.

        Raises what `holders.start` raises: ContainerDied for a program that ended at once.
        """
        self._holders = holders
        self._stack.callback(_remove, holders)
        holders.remove()  # containers that a killed testbed of this name left
        self.network.names = Names(self.control)
        self.network.publish_names(self.network.topology)
        self.network.join(holders.start(requests))

    def close(self) -> None:
        """Remove the network and all that belongs to it. Calling it twice is allowed."""
        self._stack.close()

    def _own_holders(self) -> Holders:
        if self._programs == "namespaces":
            return Namespaces()
        with self._step("Docker engine and worker image"):
            return Fleet.connected(self.name, self.control, self._programs)

    def _idle(self, workers: Iterable[Worker]) -> Iterator[ContainerRequest]:
        return idle_requests(workers, None if self._programs == "namespaces" else self._programs.files)

    # Overridden where a network is split over several hosts ----------------------------------------------------------

    def measure(self, links: Iterable[str] | None = None) -> dict[str, LinkFidelity]:
        """Measure how close all links, or these, are to their states. No other traffic may run; see `measure_links`."""
        return measure_links(self.network, links)

    def record(self) -> dict[str, Any]:
        """Return further entries for a manifest about the hosts of the network."""
        return {}

    def host_reasons(self) -> list[str]:
        """Return why figures cannot be trusted because of other hosts or the network between hosts."""
        return []

    # Asking and changing ------------------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        """The folder with the network's sockets and state while it is up."""
        return label.state_folder(self.name)

    @property
    def control(self) -> Path:
        """The folder with a subfolder for each container, which sees it as `/run/testbed`. Only root may enter it."""
        return label.control_folder(self.name)

    @property
    def links(self) -> LiveLinks:
        """The directed links that are up, by name, for reading and changing them."""
        return LiveLinks(self.network)

    def swap(self, topology: Topology | str | Path) -> SwapResult:
        """Change into another network; hosts and links that both networks have keep their connections.

        A worker whose limits change gets another container. If the swap fails, the network is as before, except that
        changed workers lost their connections. If only the removal of the old network's parts fails, the new network is
        in force. The error is raised in both cases.

        Raises:
            SpecError: The file is wrong.
            EmulationError: A container did not start, or a link could not be shaped.
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
        unfinished: Exception | None = None
        try:
            with self._holders.replacing(difference.workers.changed):
                with expected_to_start():
                    fresh = self._holders.start(self._idle(worker for worker in topology.workers if worker.name in new))
                try:
                    self.network.swap(topology, holders=fresh)
                except Exception as error:
                    if self.network.topology is not topology:
                        raise
                    unfinished = error  # the routes have moved, so the new containers stay
                finally:  # a swap that was undone has dropped the changed links' rows
                    self.replay.follow(self.network.topology.links.values())
        finally:
            if self.network.topology is topology:  # also if the engine did not remove a replaced container
                self._holders.drop(difference.workers.removed)
        if unfinished is not None:
            raise unfinished
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


def _remove(holders: Holders) -> None:
    """Remove containers or namespaces, all of them even if an interrupt cuts this short: it takes seconds."""
    try:
        holders.remove()
    except INTERRUPTS:
        holders.remove()
        raise
