"""One host of a split network: its part, its workers and its probes, as one object in a process of its own.

    holder (see `hosts`)                                  host, as root: python -m testbed.scaleout.split.host
    HostProcess -- command: local, nsenter, ssh … -->     serve --> SplitHost --> HostPart
                <--- requests and answers, pickled, on standard input and output --->

A request is (number, method, arguments), an answer (number, whether the call succeeded, value or error). A method is a
dotted name, such as `part.measure` or `fleet.kill`. Each request has a thread, so that a long one delays no other. When
its input ends, the process removes all it made and ends: a holder that was killed, or whose connection broke, leaves
nothing on any host.

Pickled values can run code. Whoever can start this process as root can run code anyway; docs/scale.md says how far the
hosts of a network trust each other. A Ray actor would need Ray on every host (0.2 GiB while it is idle), where SSH
suffices, and a process of its own for the part all the same: Ray kills an actor before it can remove what it made.

A host's part is its sites, with the links that begin there and the ends of tunnels:

    open -> build -> measured from outside -> start workers -> begin at a moment -> change, swap, sample -> end

The parts of a network know nothing of each other. The holder has every part take a step before any takes the next.
Times are in seconds on this host's monotonic clock; the holder knows how far the hosts' clocks are apart.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import platform
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from multiprocessing.connection import Connection
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, Self

from testbed.controller.server.member_server import SOCKET
from testbed.emulation.containers import engine
from testbed.emulation.containers.fleet import ContainerDied, ContainerRequest, Fleet
from testbed.emulation.containers.image import ensure_worker_image, hash_of, manifest_entry, record
from testbed.emulation.errors import EmulationError
from testbed.emulation.host.budget import Budget, known_budget
from testbed.emulation.links.links import Observer
from testbed.emulation.links.probe import LinkFidelity
from testbed.emulation.network.holders import Holders, Namespaces, idle_requests
from testbed.emulation.network.namespace import held_by
from testbed.emulation.network.network import Network
from testbed.emulation.network.share import OWN, Share
from testbed.emulation.network.swap import SwapTransaction
from testbed.emulation.network.wiring import needs_single_frames
from testbed.emulation.process import ProcessIdentity
from testbed.emulation.shaping import Shaper
from testbed.emulation.shaping.base import distorted_by_offload
from testbed.emulation.testbed import Backend, Testbed
from testbed.link import LinkState, link_ends
from testbed.resources import PACKAGE
from testbed.scaleout.split.cut_links import CutLinks, Pair, TunnelShaper
from testbed.scaleout.split.probes import Echo, Probed, Prober, measure, path_mtu
from testbed.spec.event import LinkChange
from testbed.spec.topology import Link, SwitchName, Topology
from testbed.sudo import give_back
from testbed.telemetry.host import CpuMeter
from testbed.trace.text import hash_of_file

#: The seconds between two looks at the kernel's queues, which say how much waits now, not for how long.
LOOK_S = 0.1

#: The longest path of a folder with forwarded sockets: the kernel takes 107 bytes of a socket's path, and the sockets'
#: names are numbers of four digits at most.
MOST_FOLDER_BYTES = 102

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
    """The request to a host to build its part of a network."""

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
    realtime_shaping: bool
    switch: SwitchName
    kernel: str
    mtu: int


class HostPart(Testbed):
    """One host's part of a network, as a testbed whose cut links are shaped over the hosts' network.

    As a context manager it is built on entry and removed on exit; the caller starts its workers and its replay.
    """

    def __init__(self, request: PartRequest, observer: Observer = lambda *_: None) -> None:
        """Prepare a host's part; `observer` is called with each state that a link gets, as a Testbed's is."""
        super().__init__(
            request.topology,
            name=request.name,
            backend=request.settings.backend,
            workers=request.settings.workers,
            fit_transport=request.settings.fit_transport,
            observer=observer,
        )
        self.request = request
        self._swap: SwapTransaction | None = None
        self._cpu = CpuMeter()

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.callback(self.close)
            self.open()
            self.build()
            undo.pop_all()
        return self

    def _network(self, topology: Topology, shaper: Shaper) -> Network:
        request = self.request
        over = TunnelShaper(shaper, request.floor_s)
        return Network(self.name, topology, over, self._observer, request.settings.fit_transport, request.share)

    def facts(self) -> PartFacts:
        """Return the manifest's entry of an open part."""
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

    def measure(self, links: Iterable[str] | None = None) -> dict[str, LinkFidelity]:
        """Return the errors of rate and round trip of the idle links within this host: of all, or of the named ones."""
        states = self.network.links_in_force.states()
        wanted = states.keys() if links is None else set(links)
        has = self.request.share.has
        return super().measure([name for name in states if name in wanted and all(map(has, link_ends(name)))])

    def start_workers(self, requests: Iterable[ContainerRequest] | None = None) -> Holders:
        """Start this host's workers: as requested, or, without requests, idle until programs are started in them."""
        own = [worker for worker in self.network.topology.workers if self.request.share.has(worker.site)]
        bare = self.request.settings.workers == "namespaces"
        holders: Holders = Namespaces() if bare else Fleet.connected(self.name, self.control)
        self.start(holders, idle_requests(own) if requests is None else requests)
        return holders

    def begin(self, at_s: float) -> None:
        """Replay this part's traces from a future moment on."""
        self.replay.start(self._traced(), at_s)

    def resume(self) -> None:
        """Continue this part's traces from where they were paused."""
        self.replay.resume(self._traced())

    def change(self, change: LinkChange) -> LinkState:
        """Change a link that begins here, and return the state then in force.

        Raises:
            KeyError: The link does not begin here.
            ShapingError: The delay is below the link's floor; nothing has changed.
        """
        self.network.links_in_force.change(change)
        return self.network.links_in_force.states()[change.link]

    def note(self, link: str, state: LinkState) -> None:
        """Fit the transport of this host's workers to the new state of a link that begins on another host."""
        self.network.transport.note(link, state)
        if distorted_by_offload(state):
            self.network.use_single_frames()

    def swap_step(self, step: SwapStep, topology: Topology | None = None) -> None:
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
                assert topology is not None
                if any(map(needs_single_frames, topology.links.values())):
                    self.network.use_single_frames()  # also for links that begin on other hosts
                self._swap.build()
            case "move routes":
                self._swap.move_routes()
                self.replay.follow(self._traced())
            case "remove":
                self._swap.remove()
                self._swap = None
            case "undo":
                self._swap.undo()
                self.replay.follow(self._traced())
                self._swap = None

    def _traced(self) -> list[Link]:
        """Return the links that are replayed here."""
        links = self.network.topology.links.values()
        return [link for link in links if link.trace is not None and self.request.share.has_link(link.name)]

    def sample(self) -> dict[str, Any]:
        """Return the part's figures now: its links' counters, the host's load, a failure.

        Returns:
            clock_s: The moment, on this host's monotonic clock.
            bytes: The bytes that have arrived over each link that ends here.
            counters: The counters of each link that begins here.
            cpu: This host's busy share since the last sample.
            broken: The failure of the shaper or the replay, or None.
        """
        counters, states = self.network.shaper.counters(), self.network.links_in_force.states()
        own = states.keys() & counters.keys()
        broken = self.network.failure() or self.replay.failure
        return {
            "clock_s": time.monotonic(),
            "bytes": self.network.arrived_bytes(),
            "counters": {name: counters[name] for name in own},
            "cpu": round(self._cpu.read(), 4),
            "broken": (str(broken) or repr(broken)) if broken else None,
        }


@dataclass(frozen=True, slots=True)
class HostPath:
    """The measured path from this host to another."""

    #: The least round trip in seconds; None where nobody answers.
    round_trip_s: float | None
    #: The largest packet in bytes; 0 where nobody answers.
    mtu: int


class SplitHost:
    """One host, from its first probe to `end`. Its parts are called through it: `part.build`, `fleet.kill`."""

    fleet: Fleet

    def __init__(self, name: str, address: IPv4Address, token: bytes, underlay: Path = OWN) -> None:
        """Begin to answer the probes of the network's other hosts. These probes carry the network's `token`.

        `address` is the host's on the hosts' network, `underlay` its own network namespace.

        Raises:
            OSError: The probes' port is taken.
        """
        self.name = name
        self._token = token
        self._underlay = underlay
        self._stack = ExitStack()
        self._stack.enter_context(Echo(address, token, underlay))
        self._prober: Prober | None = None
        self._states: list[tuple[float, str, LinkState]] = []
        self._lock = threading.Lock()
        self._late_s = 0.0

    # Before -------------------------------------------------------------------------------------------------------

    def code(self) -> str:
        """Return a hash of this host's program."""
        files = sorted(each for each in PACKAGE.rglob("*") if each.suffix in (".py", ".c", ".h"))
        return hash_of(f"{each.relative_to(PACKAGE)} {hash_of_file(each)}" for each in files)

    def paths(self, hosts: Mapping[str, IPv4Address]) -> dict[str, HostPath]:
        """Measure the paths to other hosts before anything is built."""
        probed = measure(hosts, self._token, self._underlay)
        found = {name: one.least_round_trip_s for name, one in probed.items()}
        return {
            name: HostPath(found[name], 0 if found[name] is None else path_mtu(address, self._underlay))
            for name, address in hosts.items()
        }

    def budget(self, choice: Literal["auto", "netem", "userspace"]) -> Budget:
        """Return this host's budget, measured now (five seconds) if not before. Raises ShapingError, BudgetError."""
        return known_budget(choice)

    # Its part -----------------------------------------------------------------------------------------------------

    def open(self, request: PartRequest) -> PartFacts:
        """Claim the network's name on this host, and find a shaping backend.

        Raises:
            FileExistsError: A network of this name is up.
            EmulationError: This host can't emulate the part.
        """
        self.part = HostPart(request, self._put_in_force)
        self._stack.callback(self.part.close)
        self.part.open()
        self.cut = CutLinks(self.part.network)
        return self.part.facts()

    def watch(self, hosts: Mapping[str, IPv4Address]) -> None:
        """Start to probe these hosts, which share a cut link with this one, and to look at queues."""
        self._prober = self._stack.enter_context(Prober(hosts, self._token, self._underlay))
        over = threading.Event()
        looks = threading.Thread(target=self._look, args=(over,), name="looks", daemon=True)
        looks.start()
        self._stack.callback(looks.join)
        self._stack.callback(over.set)

    def forwarded_folder(self) -> Path:
        """Make a folder on the control folder's file system, where the user of SSH may open sockets.

        Raises:
            EmulationError: The paths of sockets in it would be too long.
        """
        folder = self.part.folder / "s"
        if len(str(folder)) > MOST_FOLDER_BYTES:
            remedy = "give the experiment or the host a shorter name"
            raise EmulationError(f"{self.name}: a socket's path would be too long below {folder}; {remedy}")
        folder.mkdir(mode=0o700)
        give_back([folder])
        return folder

    def connect(self, sockets: Mapping[str, Path]) -> None:
        """Give each of this host's workers a second name of the socket that leads to the controller.

        The sockets are the controller's own, or forwarded to it by SSH. A server opens such a socket for the user of
        SSH alone, who can't enter the folder of the workers' sockets.
        """
        for worker, socket in sockets.items():
            folder = self.part.control / worker
            folder.mkdir(exist_ok=True)
            folder.chmod(0o755)
            socket.chmod(0o666)  # the container's user is nobody on the host, and sees this folder alone
            (folder / SOCKET).hardlink_to(socket)

    def start(self, requests: Iterable[ContainerRequest] | None = None) -> None:
        """Start this host's workers. Raises ContainerDied, EngineError."""
        holders = self.part.start_workers(requests)
        if isinstance(holders, Fleet):
            self.fleet = holders

    def worker_image(self) -> str:
        """Return the workers' image, built where it is missing. Raises EngineError, ImageError."""
        return ensure_worker_image(engine.connect(), lambda _: None)

    def image_record(self) -> dict[str, Any]:
        """Return a manifest's entry of the workers' image."""
        client = engine.connect()
        return manifest_entry(record(client, ensure_worker_image(client, lambda _: None)))

    def running(self) -> dict[str, bool]:
        """Return whether each worker's container still runs; nothing before the workers were started."""
        return self.fleet.running() if hasattr(self, "fleet") else {}

    def restart(self, request: ContainerRequest) -> ProcessIdentity:
        """Replace a worker's container on the network, and return the new container's first process.

        Raises:
            ContainerDied: The new container ended before it was on the network.
        """
        first, worker = self.fleet.restart(request), request.worker.name
        try:
            self.part.network.leave([worker])
            self.part.network.join({worker: first})
        except (OSError, RuntimeError) as error:
            if held_by(first.pid):
                raise
            raise ContainerDied(f"{worker} ended before it was on the network") from error
        return first

    def sample(self) -> dict[str, Any]:
        """Return the part's sample, and this host's probes, new states of links and lateness since the last sample.

        Returns:
            probed: The probes of each neighbour.
            states: The (moment, link, state) of each state put in force.
            late_s: By how many seconds this process was late to wake up, at the worst.
        """
        with self._lock:
            states, self._states = self._states, []
            late_s, self._late_s = self._late_s, 0.0
        seen: dict[str, Probed] = self._prober.seen() if self._prober is not None else {}
        return {**self.part.sample(), "probed": seen, "states": states, "late_s": late_s}

    def end(self) -> None:
        """Remove all that was made. A second call does nothing."""
        self._stack.close()

    def _put_in_force(self, at_s: float, link: str, state: LinkState) -> None:
        with self._lock:
            self._states.append((at_s, link, state))

    def _look(self, over: threading.Event) -> None:
        due = time.monotonic()
        while not over.is_set():
            due += LOOK_S
            over.wait(max(0.0, due - time.monotonic()))
            with self._lock:
                self._late_s = max(self._late_s, time.monotonic() - due)
            due = max(due, time.monotonic() - LOOK_S)
            with contextlib.suppress(Exception):  # the next sample reports a dead shaper
                self.part.network.shaper.counters()
                self.part.network.links_in_force.collect()


# Its process ----------------------------------------------------------------------------------------------------------


def serve() -> int:
    """Carry out the holder's requests until its end of the input closes, and return the exit code.

    The arguments of the first request are those of SplitHost.
    """
    requests, answers = Connection(os.dup(0), writable=False), Connection(os.dup(1), readable=False)
    os.dup2(2, 1)  # what any code prints must not mix with the answers
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    lock, host = threading.Lock(), None

    def answer(number: int, succeeded: bool, value: Any) -> None:
        with lock, contextlib.suppress(OSError):  # the holder has gone
            answers.send((number, succeeded, value))

    def carry_out(number: int, method: str, arguments: Iterable[Any]) -> None:
        try:
            answer(number, True, attrgetter(method)(host)(*arguments))
        except BaseException as error:
            answer(number, False, _picklable(error))

    try:
        for request in received(requests):
            if host is not None:
                threading.Thread(target=carry_out, args=request, daemon=True).start()
                continue
            try:
                host = SplitHost(*request[2])
                answer(request[0], True, None)
            except OSError as error:
                answer(request[0], False, _picklable(error))
                return 1
    finally:
        if host is not None:
            host.end()
    return 0


def received(connection: Connection) -> Iterator[Any]:
    """Yield the values that arrive, until the other end closes the connection or breaks off."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            yield connection.recv()


def _picklable(error: BaseException) -> BaseException:
    """Return the error, or a RuntimeError with its traceback where the error does not survive pickling."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError("".join(traceback.format_exception(error)))
    return error


if __name__ == "__main__":
    # Pickle names a class by its module: the holder does not know the classes of this one as __main__.
    from testbed.scaleout.split import host as own

    sys.exit(own.serve())
