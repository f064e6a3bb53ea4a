"""A network that is up, as the API's subject."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from testbed.api.models import LinkHistory, NetworkStatus
from testbed.api.requests import (
    NOT_HERE,
    NOT_OURS,
    AddWorker,
    ApiProblem,
    ChangeLinks,
    HttpRequest,
    PauseReplay,
    RecordLaunch,
    Request,
    Stop,
    SwapNetwork,
)
from testbed.api.server import ApiServer, port_socket
from testbed.api.stream import State
from testbed.api.subject import Subject
from testbed.emulation.daemon import SOCKET, status
from testbed.emulation.daemon.handlers import (
    as_api_problem,
    change_links,
    changes_of,
    check_file,
    check_site,
    pairs_of,
    pause_replay,
)
from testbed.emulation.links.links import History
from testbed.emulation.testbed import Backend, Step, SwapResult, Testbed, Workers
from testbed.spec.topology import Topology

log = logging.getLogger(__name__)

#: A client that connects later gets at most this many of the last events.
EVENTS = 1000


class NetworkSubject(Subject):
    """Carries out the API's requests on a network that is up, in `executor`. `tell` is called after each event.

    `history` is the testbed's observer, which records the links' states.
    """

    def __init__(self, testbed: Testbed, history: History, executor: Executor) -> None:
        self.executor = executor
        self.tell: Callable[[], None] = lambda: None
        self._testbed = testbed
        self._history = history
        self._events: deque[tuple[int, dict[str, Any]]] = deque(maxlen=EVENTS)
        self._count = 0

    def state(self) -> State:
        """Return the network's present state: its links, hosts and newest events."""
        events = {str(number): event for number, event in list(self._events)}
        return {**status.sections(self._testbed, "network"), "events": events}

    def status(self) -> NetworkStatus:
        """Return the status with hosts, links and the lateness of the replay."""
        return status.status(self._testbed, "network")

    def metrics(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return status.metrics(self.status())

    def history(self, since: int | None) -> LinkHistory:
        """Return the states that links have had after the first `since`, or the last state of each if it is None."""
        states, count = self._history.since(since)
        return LinkHistory(states=states, count=count)

    def do(self, request: Request) -> dict[str, Any]:
        """Carry out a request, and return its result. Raises ApiProblem for a request that only runs take."""
        match request:
            case ChangeLinks():
                return self._change_links(request)
            case SwapNetwork():
                return self._swap(request)
            case AddWorker():
                return self._add_worker(request)
            case PauseReplay():
                return self._pause(request)
            case RecordLaunch():
                self._happened(request.kind, request.target, by=None)
                return {}
            case Stop():
                self._happened("stop", request.reason)
                os.kill(os.getpid(), signal.SIGTERM)  # as `testbed network down` does
                return {}
        raise ApiProblem(NOT_HERE, request.REFUSED if isinstance(request, HttpRequest) else NOT_OURS)

    def _change_links(self, request: ChangeLinks) -> dict[str, Any]:
        with as_api_problem():
            changes = changes_of(request.links, self._testbed.network.links_in_force.requested())
            change_links(self._testbed.network, changes, pairs_of(request.links), self._happened)
        return {}

    def _swap(self, request: SwapNetwork) -> dict[str, Any]:
        with as_api_problem():
            check_file(request.file)
            done = _record(self._testbed.swap(request.file))
        self._happened("swap", self._testbed.network.topology.name)
        return done

    def _add_worker(self, request: AddWorker) -> dict[str, Any]:
        site = request.site
        check_site(self._testbed, site)
        with as_api_problem():
            self._testbed.swap(self._testbed.network.topology.with_worker(site))
        network = self._testbed.network
        worker = network.topology.last_worker(site)
        self._happened("add", worker.name)
        return {"worker": worker.name, "site": site, "address": network.address(worker)}

    def _pause(self, request: PauseReplay) -> dict[str, Any]:
        with as_api_problem():
            pause_replay(self._testbed, request.paused)
        self._happened("pause" if request.paused else "resume", self._testbed.name)
        return {}

    def _happened(self, kind: str, target: str, **more: Any) -> None:
        log.info("%s %s", kind, target)
        self._count += 1
        event = {"at_s": time.time(), "kind": kind, "target": target, "by": "hand", **more}
        self._events.append((self._count, event))
        self.tell()


def _record(swapped: SwapResult) -> dict[str, Any]:
    counted = asdict(swapped)
    return {**counted.pop("difference"), **counted}


@contextmanager
def serve_network(
    topology: Topology | Path, *, name: str, backend: Backend, workers: Workers, step: Step, port: int | None = None
) -> Iterator[tuple[Testbed, ApiServer]]:
    """Keep a testbed up inside the context, and serve the API over it, also on the TCP `port` of 127.0.0.1 if given.

    Raises:
        EmulationError, FileExistsError, SpecError: As a Testbed does.
        PortTaken: The port is in use.
    """
    history = History()
    testbed = Testbed(topology, name=name, backend=backend, workers=workers, observer=history.note, step=step)
    with ExitStack() as stack:
        # First: a port that is in use is refused before anything is built.
        listening = None if port is None else stack.enter_context(port_socket(port))
        stack.enter_context(testbed)
        executor = stack.enter_context(ThreadPoolExecutor(1, "requests"))  # runs all requests, one after the other
        subject = NetworkSubject(testbed, history, executor)
        server = stack.enter_context(ApiServer(subject, testbed.folder / SOCKET, listening))
        history.tell = subject.tell = server.announce
        yield testbed, server
