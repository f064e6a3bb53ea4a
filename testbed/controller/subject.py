"""A standalone controller as the API's subject: its members, plans, rounds and decisions, without a network.

The API's threads call the subject. Only the controller's own objects are read on the controller's event loop; record
files are read on the calling thread, so that members never wait for a disk.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from testbed.api.models import LinkHistory, NetworkStatus
from testbed.api.requests import NOT_HERE, WRONG, ApiProblem, Request
from testbed.api.stream import State
from testbed.api.subject import Subject
from testbed.controller.model.clocks import SYSTEM
from testbed.controller.model.coordinator import NotForMembers
from testbed.controller.run_records import RunRecords, keep_plans
from testbed.controller.service import ControllerService
from testbed.telemetry.prometheus import metrics as metrics_of
from testbed.telemetry.store import finite

P = ParamSpec("P")
R = TypeVar("R")

#: The most rounds, decisions, plans and events in the state, of each kind: a training of weeks makes millions.
NEWEST = 1000


class EventLoopExecutor(Executor):
    """Runs calls on the controller's event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Schedule a call, from any other thread. Raises RuntimeError once the loop is closed."""
        future: Future[R] = Future()

        def call() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except Exception as error:
                    future.set_exception(error)

        self._loop.call_soon_threadsafe(call)
        return future


#: A controller's status (`ControllerService.status`), and each member's address for its peers; empty before it joins.
Snapshot = tuple[dict[str, Any], dict[str, str]]


class ControllerSubject(Subject):
    """Shows one training of a controller, and passes requests to the controller.

    To be made on the running event loop.
    """

    def __init__(self, controller: ControllerService, directory: Path) -> None:
        self.executor = EventLoopExecutor(asyncio.get_running_loop())
        self._controller = controller
        self._directory = directory
        self._records = RunRecords(directory, self, newest=NEWEST)
        self._plans: dict[int, dict[str, Any]] = {}
        self._began_s = SYSTEM.monotonic()

    def rounds(self, since: int) -> list[dict[str, Any]]:
        """Return the complete rounds from number `since` on that the controller still keeps."""
        return list(finite(self.executor.submit(self._controller.coordinator.rounds, since).result()))

    def state(self) -> State:
        """Return the training's state. Never called on the event loop, which would wait for itself."""
        status, addresses = self._snapshot()
        # The newest swaps alone, because the state is taken up to ten times a second.
        training = finite({**status, "swaps": status["swaps"][-NEWEST:]})
        plans = dict(self._plans)
        keep_plans(plans, training)
        self._plans = dict(sorted(plans.items())[-NEWEST:])
        events, newest = training.pop("membership_events"), training["round"]
        training = {name: value for name, value in training.items() if name not in ("plan", "swaps")}
        return {
            "network": self._overview(status),
            # Without positions: the controller does not know where the machines are.
            "sites": {name: {"label": None, "position": None, "workers": [name]} for name in addresses},
            "hosts": _hosts(status, addresses),
            "links": {},
            "traffic": {},
            "events": {
                str(number): {"at_s": event["at_s"], "kind": event["kind"], "target": event["member"]}
                for number, event in list(enumerate(events, start=1))[-NEWEST:]
            },
            "training": training | {"workers": self._records.spent()},
            "plans": {str(epoch): plan for epoch, plan in self._plans.items()},
            "rounds": self._records.until(newest),
            "decisions": self._records.decisions(),
        }

    def status(self) -> NetworkStatus:
        """Return the members as hosts; there are no links."""
        status, addresses = self._snapshot()
        return NetworkStatus(**self._overview(status), hosts=_hosts(status, addresses), links={})

    def history(self, since: int | None) -> LinkHistory:
        """Refuse: there is no emulated network."""
        raise ApiProblem(NOT_HERE, "a standalone controller has no emulated network, so there is no link history")

    def metrics(self) -> bytes:
        """Return the controller's status in Prometheus' text format."""
        return metrics_of(self._snapshot()[0])

    def do(self, request: Request) -> dict[str, Any]:
        """Pass a user's request to the controller. Raises ApiProblem if the controller refuses it."""
        try:
            self._controller.do(request)
        except NotForMembers as error:
            raise ApiProblem(NOT_HERE, str(error)) from error
        except ValueError as error:  # PolicyError and GraphError
            raise ApiProblem(WRONG, str(error)) from error
        return {}

    def _snapshot(self) -> Snapshot:
        return self.executor.submit(_read, self._controller).result()

    def _overview(self, status: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "kind": "controller",
            "name": self._directory.name,
            "topology": "",
            "file": "",
            "backend": "none",
            "switch": "none",
            "transport": {},
            "pid": os.getpid(),
            "failure": status["failure"] or None,
            "replay": {
                "elapsed_s": SYSTEM.monotonic() - self._began_s,
                "links": 0,
                "late_ms_p99": None,
                "paused": False,
            },
        }


def _read(controller: ControllerService) -> Snapshot:
    """Read a controller. To be called on its event loop. Members decide how many rounds there are."""
    hellos = controller.hellos
    addresses = {name: hellos[name].address[0] if name in hellos else "" for name in controller.spec.members}
    return controller.status() | {"rounds": None}, addresses


def _hosts(status: Mapping[str, Any], addresses: Mapping[str, str]) -> dict[str, Any]:
    newest = {event["member"]: event["kind"] for event in status["membership_events"]}
    lost = {member for member, kind in newest.items() if kind == "left"}
    there = set(status["joined"]) - set(status["left"]) - lost
    return {
        name: {
            "kind": "worker",
            "site": name,
            "address": address,
            "pid": 0,
            "start_ticks": None,
            "running": name in there,
        }
        for name, address in addresses.items()
    }
