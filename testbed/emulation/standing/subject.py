"""A network that is up, as the API's subject."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import asdict
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
    Request,
    Stop,
    SwapNetwork,
)
from testbed.api.stream import State
from testbed.api.subject import Subject
from testbed.emulation.links.history import History
from testbed.emulation.standing import status
from testbed.emulation.standing.orders import (
    change_links,
    changes_of,
    check_file,
    check_site,
    hold,
    in_words,
    pairs_of,
)
from testbed.emulation.testbed import Swapped, Testbed

log = logging.getLogger(__name__)

#: So many of the last events are told to who comes later.
EVENTS = 1000


class NetworkSubject(Subject):
    """Carries out what is asked of a network that is up.

    Attributes:
        tell: Called when something has happened.

    Args:
        testbed: The network.
        history: The observer of the testbed, which knows the states that links came to have.
        executor: Runs the requests.
    """

    def __init__(self, testbed: Testbed, history: History, executor: Executor) -> None:
        self.executor = executor
        self.tell: Callable[[], None] = lambda: None
        self._testbed = testbed
        self._history = history
        self._events: deque[tuple[int, dict[str, Any]]] = deque(maxlen=EVENTS)
        self._count = 0

    def state(self) -> State:
        events = {str(number): event for number, event in list(self._events)}
        return {**status.sections(self._testbed, "network"), "events": events}

    def status(self) -> NetworkStatus:
        return status.status(self._testbed, "network")

    def metrics(self) -> bytes:
        return status.metrics(self.status())

    def history(self, since: int | None) -> LinkHistory:
        states, count = self._history.since(since)
        return LinkHistory(states=states, count=count)

    def do(self, request: Request) -> dict[str, Any]:
        match request:
            case ChangeLinks():
                return self._change_links(request)
            case SwapNetwork():
                return self._swap(request)
            case AddWorker():
                return self._add_worker(request)
            case PauseReplay():
                return self._pause(request)
            case Stop():
                self._happened("stop", request.reason)
                os.kill(os.getpid(), signal.SIGTERM)  # as `down` ends it
                return {}
        raise ApiProblem(NOT_HERE, request.REFUSED if isinstance(request, HttpRequest) else NOT_OURS)

    def _change_links(self, request: ChangeLinks) -> dict[str, Any]:
        with in_words():
            changes = changes_of(request.links, self._testbed.network.links_in_force.asked())
            change_links(self._testbed.network, changes, pairs_of(request.links), self._happened)
        return {}

    def _swap(self, request: SwapNetwork) -> dict[str, Any]:
        with in_words():
            check_file(request.file)
            done = _record(self._testbed.swap(request.file))
        self._happened("swap", self._testbed.network.topology.name)
        return done

    def _add_worker(self, request: AddWorker) -> dict[str, Any]:
        site = request.site
        check_site(self._testbed, site)
        with in_words():
            self._testbed.swap(self._testbed.network.topology.with_worker(site))
        network = self._testbed.network
        worker = network.topology.last_worker(site)
        self._happened("add", worker.name)
        return {"worker": worker.name, "site": site, "address": network.address(worker)}

    def _pause(self, request: PauseReplay) -> dict[str, Any]:
        with in_words():
            hold(self._testbed, request.paused)
        self._happened("pause" if request.paused else "resume", self._testbed.name)
        return {}

    def _happened(self, kind: str, target: str, **more: Any) -> None:
        log.info("%s %s", kind, target)
        self._count += 1
        event = {"at_s": time.time(), "kind": kind, "target": target, "by": "hand", **more}
        self._events.append((self._count, event))
        self.tell()


def _record(swapped: Swapped) -> dict[str, Any]:
    counted = asdict(swapped)
    return {**counted.pop("difference"), **counted}
