"""One host of a split network: its part, its workers and its probes, as one object in a process of its own.

    holder (see `hosts`)                                  host, as root: python -m testbed.scaleout.split.host
    HostProcess -- command: local, nsenter, ssh … -->     serve --> SplitHost
                <--- requests and answers, pickled, on standard input and output --->

A request is (number, method, arguments), an answer (number, whether the call succeeded, value or error). A method is a
dotted name, such as `part.build` or `fleet.kill`. Each request has a thread, so that a long one does not delay others.
When its input ends, the process removes all it made and ends: a holder that was killed, or whose connection broke,
leaves nothing on any host.

Pickled values can run code. Whoever can start this process as root can run code anyway; docs/scale.md says how far the
hosts of a network trust each other.

Times are in seconds on this host's monotonic clock; the holder knows how far the hosts' clocks are apart.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import IPv4Address
from operator import attrgetter
from pathlib import Path
from typing import IO, Any, Literal

from testbed.emulation.containers import engine
from testbed.emulation.containers.fleet import ContainerRequest, Fleet
from testbed.emulation.containers.image import ensure_worker_image, manifest_entry, record
from testbed.emulation.host.budget import Budget, known_budget
from testbed.emulation.network.share import OWN
from testbed.emulation.process import ProcessIdentity
from testbed.link import LinkState
from testbed.scaleout.split.control_relay import ControlProxies, GatewayAddress
from testbed.scaleout.split.cut_links import CutLinks
from testbed.scaleout.split.part import HostPart, PartFacts, PartRequest
from testbed.scaleout.split.probes import Echo, Probed, Prober, measure, path_mtu

#: The seconds between two looks at the kernel's queues, which say how much waits now, not for how long.
LOOK_S = 0.1

_LENGTH = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class HostPath:
    """The path from this host to another."""

    #: The least round trip in seconds; None where nobody answers.
    round_trip_s: float | None
    #: The largest packet in bytes.
    mtu: int


class SplitHost:
    """One host, from its first probe to `end`. Its parts are called through it: `part.build`, `fleet.kill`."""

    fleet: Fleet

    def __init__(self, name: str, address: IPv4Address, token: bytes, underlay: Path = OWN) -> None:
        """Begin to answer probes.

        Args:
            address: The host's address on the hosts' network.
            token: The network's token, by which its hosts know each other's probes.
            underlay: The host's own network namespace.

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

    def paths(self, hosts: Mapping[str, IPv4Address]) -> dict[str, HostPath]:
        """Measure the paths to other hosts before anything is built. Raises OSError where there is no route."""
        found = measure(hosts, self._token, self._underlay)
        return {
            name: HostPath(found[name].least_round_trip_s, path_mtu(address, self._underlay))
            for name, address in hosts.items()
        }

    def budget(self, choice: Literal["auto", "netem", "userspace"]) -> Budget:
        """Return what this host can carry, measured now (five seconds) if not before. ShapingError, BudgetError."""
        return known_budget(choice)

    # Its part -----------------------------------------------------------------------------------------------------

    def open(self, request: PartRequest) -> PartFacts:
        """Open this host's part. Raises as HostPart.open."""
        self.part = HostPart(request, self._put_in_force)
        self._stack.callback(self.part.end)
        facts = self.part.open()
        self.cut = CutLinks(self.part.network)
        self._stack.callback(self.cut.close)
        return facts

    def watch(self, hosts: Mapping[str, IPv4Address]) -> None:
        """Start to probe these hosts, which share a cut link with this one, and to look at queues."""
        self._prober = self._stack.enter_context(Prober(hosts, self._token, self._underlay))
        over = threading.Event()
        looks = threading.Thread(target=self._look, args=(over,), name="looks", daemon=True)
        looks.start()
        self._stack.callback(looks.join)
        self._stack.callback(over.set)

    def connect(self, gateway: GatewayAddress) -> None:
        """Lead this host's workers to the controller at the gateway, over the hosts' network."""
        has = self.part.request.share.has
        own = [worker.name for worker in self.part.network.topology.workers if has(worker.site)]
        proxies = ControlProxies(gateway, self.part.testbed.control, own, self._underlay)
        self._stack.enter_context(proxies)

    def start(self, requests: Iterable[ContainerRequest] | None) -> None:
        """Start this host's workers. Raises ContainerDied, EngineError."""
        self.part.start(requests)
        if isinstance(self.part.held, Fleet):
            self.fleet = self.part.held

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
        """Replace a worker's container on the network, and return the new container's first process."""
        first = self.fleet.restart(request)
        self.part.network.leave([request.worker.name])
        self.part.network.join({request.worker.name: first})
        return first

    def sample(self) -> dict[str, Any]:
        """Return the part's sample with this host's own figures since the last one.

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


def write_message(stream: IO[bytes], value: Any) -> None:
    """Write a pickled value behind its length."""
    data = pickle.dumps(value)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def read_message(stream: IO[bytes]) -> Any:
    """Read the next value; None at the end of the stream."""
    head = stream.read(_LENGTH.size)
    return pickle.loads(stream.read(*_LENGTH.unpack(head))) if len(head) == _LENGTH.size else None


def serve() -> int:
    """Carry out the holder's requests until its end of the input closes, and return the exit code.

    The arguments of the first request are those of SplitHost.
    """
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what any code prints must not mix with the answers
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    lock, host = threading.Lock(), None

    def answer(number: int, succeeded: bool, value: Any) -> None:
        with lock, contextlib.suppress(OSError):  # the holder has gone
            write_message(answers, (number, succeeded, value))

    def carry_out(number: int, method: str, arguments: Iterable[Any]) -> None:
        try:
            answer(number, True, attrgetter(method)(host)(*arguments))
        except BaseException as error:
            answer(number, False, _picklable(error))

    try:
        while (request := read_message(requests)) is not None:
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
