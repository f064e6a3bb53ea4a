"""A network with links, replay, API subject and server, but without packets and hosts."""

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
from testbed.emulation.links.links import History, Links
from testbed.emulation.links.replay import Replay
from testbed.emulation.network.difference import Difference
from testbed.emulation.network.network import Network
from testbed.emulation.testbed import SwapResult, Testbed
from testbed.link import link_name
from testbed.spec.topology import Topology
from tests.emulation.recorder import Recorder


class NetworkWithoutPackets:
    """The parts of a testbed that requests use, over a shaper that records its commands."""

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
                failure=self.shaper.failure,
                switch="none",
                transport=SimpleNamespace(record=dict),
                nameToNode={},
                address=lambda worker: f"an address of {worker.site}",
                links_in_force=self.links_in_force,
                take=self._take,
            ),
        )

    def swap(self, topology: Topology | Path) -> SwapResult:
        """Swap as a testbed does, without building anything; the difference is recorded."""
        before = self.network.topology
        if isinstance(topology, Topology):
            self.network.topology = topology
        after = topology if isinstance(topology, Topology) else Topology.load(topology)
        return SwapResult(Difference.between(before, after), 0, 0.0, 0, 0)

    def _take(self, a: str, b: str, up: bool) -> None:
        self.links_in_force.take((link_name(a, b), link_name(b, a)), up)


class UnstoppableSubject(NetworkSubject):
    """A network in a process that has other work too, and goes on where the network would be stopped."""

    def do(self, request: Request) -> dict[str, Any]:
        if isinstance(request, Stop):
            self._happened("stop", request.reason)
            return {}
        return super().do(request)


@contextmanager
def answering(
    topology: Topology, socket: Path, port: int | None = None, token: str | None = None
) -> Iterator[tuple[NetworkSubject, ApiServer]]:
    """Yield the network's subject and the API's server."""
    history = History()
    network = NetworkWithoutPackets(topology, history)
    with ThreadPoolExecutor(1) as executor:
        subject = UnstoppableSubject(cast(Testbed, network), history, executor)
        with ApiServer(subject, socket, port, token) as server:
            history.tell = subject.tell = server.announce
            yield subject, server
