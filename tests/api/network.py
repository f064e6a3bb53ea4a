"""A network that is up but for its packets and its hosts: its links, its replay, its API's subject and server."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from testbed.api.requests import Request, Stop
from testbed.api.server import ApiServer
from testbed.emulation.daemon.subject import NetworkSubject
from testbed.emulation.links.history import History
from testbed.emulation.links.links import Links
from testbed.emulation.links.replay import Replay
from testbed.emulation.network.difference import Difference
from testbed.emulation.network.network import Network
from testbed.emulation.testbed import SwapResult, Testbed
from testbed.link import link_name
from testbed.spec.topology import Topology
from tests.emulation.recorder import Recorder


class NetworkWithoutPackets:
    """What a testbed has for those who ask it, over a shaper that writes down what it is told."""

    def __init__(self, topology: Topology, history: History) -> None:
        self.name = topology.name
        self.shaper = Recorder()
        self.links_in_force = Links(self.shaper, history.note)
        for link in topology.links.values():
            self.links_in_force.add(link)
        self.replay = Replay(self.links_in_force)
        self.network = cast(
            Network,
            SimpleNamespace(
                topology=topology,
                shaper=self.shaper,
                switch="none",
                transport=SimpleNamespace(record=dict),
                nameToNode={},
                address=lambda worker: f"an address of {worker.site}",
                links_in_force=self.links_in_force,
                take=self._take,
            ),
        )

    def swap(self, topology: Topology | Path) -> SwapResult:
        """As a testbed does, up to where it would build; of a file only what differs is told."""
        before = self.network.topology
        if isinstance(topology, Topology):
            self.network.topology = topology
        after = topology if isinstance(topology, Topology) else Topology.load(topology)
        return SwapResult(Difference.between(before, after), 0, 0.0, 0, 0)

    def _take(self, a: str, b: str, up: bool) -> None:
        self.links_in_force.take((link_name(a, b), link_name(b, a)), up)


class UnstoppableSubject(NetworkSubject):
    """A network in a process that is not the network's alone, and goes on where the network would be stopped."""

    def do(self, request: Request) -> dict[str, Any]:
        if isinstance(request, Stop):
            self._happened("stop", request.reason)
            return {}
        return super().do(request)


@contextmanager
def answering(topology: Topology, socket: Path, port: int | None = None) -> Iterator[tuple[NetworkSubject, ApiServer]]:
    """Yield the network's subject and the API's server."""
    history = History()
    network = NetworkWithoutPackets(topology, history)
    with ThreadPoolExecutor(1) as executor:
        subject = UnstoppableSubject(cast(Testbed, network), history, executor)
        with ApiServer(subject, socket, port) as server:
            history.tell = subject.tell = server.announce
            yield subject, server
