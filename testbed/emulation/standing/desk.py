"""A testbed that is up, as the API's subject: requests into calls of it."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from testbed.api.models import LinkHistory, LinkPatch, NetworkStatus
from testbed.api.stream import State
from testbed.api.subject import Subject
from testbed.emulation.links.history import History
from testbed.emulation.standing import status
from testbed.emulation.standing.orders import changes_of, check_site, hold, in_words, pairs_of
from testbed.emulation.testbed import Swapped, Testbed
from testbed.link import pair_name

log = logging.getLogger(__name__)

#: So many of the last events are told to who comes later.
EVENTS = 1000


class Desk(Subject):
    """Where a network's requests come in; `history` is what the testbed tells its observer, and `tell` is called when
    something has happened."""

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

    def change_links(self, patches: Mapping[str, LinkPatch]) -> None:
        network = self._testbed.network
        with in_words():
            for change in changes_of(patches, network.links_in_force.asked()):
                changed = network.links_in_force.change(change).values()
                self._happened("change", change.link, changed=changed)
            for a, b, up in pairs_of(patches):
                network.take(a, b, up)
                self._happened("up" if up else "down", pair_name(a, b))

    def swap(self, file: Path) -> dict[str, Any]:
        with in_words():
            done = _record(self._testbed.swap(file))
        self._happened("swap", self._testbed.network.topology.name)
        return done

    def add_worker(self, site: str) -> dict[str, Any]:
        check_site(self._testbed, site)
        with in_words():
            self._testbed.swap(self._testbed.network.topology.with_worker(site))
        network = self._testbed.network
        worker = network.topology.last_worker(site)
        self._happened("add", worker.name)
        return {"worker": worker.name, "site": site, "address": network.address(worker)}

    def pause(self, paused: bool) -> None:
        with in_words():
            hold(self._testbed, paused)
        self._happened("pause" if paused else "resume", self._testbed.name)

    def stop(self, reason: str) -> None:
        self._happened("stop", reason)
        os.kill(os.getpid(), signal.SIGTERM)  # as `down` ends it

    def _happened(self, kind: str, target: str, **more: Any) -> None:
        log.info("%s %s", kind, target)
        self._count += 1
        event = {"at_s": time.time(), "kind": kind, "target": target, "by": "hand", **more}
        self._events.append((self._count, event))
        self.tell()


def _record(swapped: Swapped) -> dict[str, Any]:
    counted = asdict(swapped)
    return {**counted.pop("difference"), **counted}
