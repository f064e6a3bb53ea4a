"""What one host does for a network that is split, as one object: its part, its workers, its probes.

Whoever holds the hosts of a network calls methods of this by name, in this process or over `split.process`: values and
errors are plain, and pickle. `part` and `fleet` answer for what they are: `part.build`, `fleet.kill`.

Times are in seconds on this host's monotonic clock. Who holds the hosts knows how far their clocks are apart.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Literal

from testbed.emulation.containers import engine
from testbed.emulation.containers.fleet import ContainerRequest, Fleet
from testbed.emulation.containers.image import ensure_worker_image, manifest_entry, record
from testbed.emulation.host.budget import Budget, known_budget
from testbed.emulation.network.share import OWN
from testbed.emulation.process import ProcessIdentity
from testbed.link import LinkState
from testbed.scaleout.split.cut import CutLinks
from testbed.scaleout.split.part import HostPart, PartFacts
from testbed.scaleout.split.proxy import ControlProxies, GatewayAddress
from testbed.scaleout.split.testbed import PartRequest
from testbed.scaleout.underlay_probe import Echo, Probed, Prober, measure, path_mtu

#: A kernel's queues say how much waits now, not for how long: they are looked at this often.
LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class HostPath:
    """The way from this host to another: least round trip in seconds, None where nobody answers, and largest packet."""

    round_trip_s: float | None
    mtu: int


class SplitHost:
    """One host, from its first probe to `end`. `address` is its own on the hosts' network; `token` is the network's,
    by which its hosts know each other's probes. OSError where the port of probes is taken."""

    fleet: Fleet

    def __init__(self, name: str, address: IPv4Address, token: bytes, underlay: Path = OWN) -> None:
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
        """The ways to other hosts, before anything is built; OSError where there is none."""
        found = measure(hosts, self._token, self._underlay)
        return {
            name: HostPath(found[name].least_round_trip_s, path_mtu(address, self._underlay))
            for name, address in hosts.items()
        }

    def budget(self, choice: Literal["auto", "netem", "userspace"]) -> Budget:
        """What this host carries, kept or measured now (five seconds). ShapingError, BudgetError."""
        return known_budget(choice)

    # Its part -----------------------------------------------------------------------------------------------------

    def open(self, request: PartRequest) -> PartFacts:
        """Make the name ours on this host. FileExistsError, EmulationError."""
        self.part = HostPart(request, self._put_in_force)
        self._stack.callback(self.part.end)
        facts = self.part.open()
        self.cut = CutLinks(self.part.network)
        self._stack.callback(self.cut.close)
        return facts

    def watch(self, hosts: Mapping[str, IPv4Address]) -> None:
        """Probe the hosts that share a cut link with this one from now on, and look at queues."""
        self._prober = self._stack.enter_context(Prober(hosts, self._token, self._underlay))
        over = threading.Event()
        looks = threading.Thread(target=self._look, args=(over,), name="looks", daemon=True)
        looks.start()
        self._stack.callback(looks.join)
        self._stack.callback(over.set)

    def connect(self, gateway: GatewayAddress) -> None:
        """Have this host's workers reach the controller where the gateway is, over the hosts' network."""
        own = [worker.name for worker in self.part.network.topology.workers if self._has(worker.site)]
        proxies = ControlProxies(gateway, self.part.testbed.control, own, self._underlay)
        self._stack.enter_context(proxies)

    def start(self, requests: Iterable[ContainerRequest] | None) -> None:
        """Start this host's workers. ContainerDied, EngineError."""
        self.part.start(requests)
        holders = self.part.held
        if isinstance(holders, Fleet):
            self.fleet = holders

    def worker_image(self) -> str:
        """The image of workers, made where it is not there yet. EngineError, ImageError."""
        return ensure_worker_image(engine.connect(), lambda _: None)

    def image_record(self) -> dict[str, Any]:
        """Return what a manifest says of that image."""
        client = engine.connect()
        return manifest_entry(record(client, ensure_worker_image(client, lambda _: None)))

    def running(self) -> dict[str, bool]:
        """Worker → whether its container still runs; none before they were started."""
        return self.fleet.running() if hasattr(self, "fleet") else {}

    def restart(self, request: ContainerRequest) -> ProcessIdentity:
        """Another container in the place of a worker's own, on the network; its first process."""
        first = self.fleet.restart(request)
        self.part.network.leave([request.worker.name])
        self.part.network.join({request.worker.name: first})
        return first

    def sample(self) -> dict[str, Any]:
        """As of the part, with what the probes have seen, the states put in force, and by how much this process was
        late at the worst when it was to wake up, each since the last sample."""
        with self._lock:
            states, self._states = self._states, []
            late_s, self._late_s = self._late_s, 0.0
        seen: dict[str, Probed] = self._prober.seen() if self._prober is not None else {}
        return {**self.part.sample(), "probed": seen, "states": states, "late_s": late_s}

    def end(self) -> None:
        """Take all of it away. A second time does nothing."""
        self._stack.close()

    def _has(self, site: str) -> bool:
        return self.part.request.share.has(site)

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
            with contextlib.suppress(Exception):  # a dead shaper says so in the next sample
                self.part.network.shaper.counters()
                self.part.network.links_in_force.collect()
