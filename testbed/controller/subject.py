"""A standalone controller as the API's subject: its members, plans, rounds and decisions, without a network."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from testbed.api.models import LinkHistory, NetworkStatus
from testbed.api.requests import NOT_HERE, WRONG, ApiProblem, Request
from testbed.api.stream import State
from testbed.api.subject import Subject
from testbed.controller.model.coordinator import NotForMembers
from testbed.controller.run_records import RunRecords
from testbed.controller.service import ControllerService
from testbed.telemetry.prometheus import metrics as metrics_of
from testbed.telemetry.store import finite

P = ParamSpec("P")
R = TypeVar("R")

#: The number of newest rounds in the state. A training of weeks makes millions of rounds.
MOST_ROUNDS = 1000


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


class ControllerSubject(Subject):
    """Shows one training of a controller, and passes requests to the controller.

    Args:
        controller: The controller, on the running event loop.
        directory: The directory of the training's records.
    """

    def __init__(self, controller: ControllerService, directory: Path) -> None:
        self.executor = EventLoopExecutor(asyncio.get_running_loop())
        self._controller = controller
        self._directory = directory
        self._records = RunRecords(directory, self)
        self._plans: dict[str, Any] = {}

    def rounds(self, since: int) -> list[dict[str, Any]]:
        """Return the newest complete rounds, from number `since` on."""
        progress = self._controller.coordinator.progress
        newest = progress.status()["round"] or 0
        return list(finite(progress.rounds(max(since, newest - MOST_ROUNDS + 1))))

    def state(self) -> State:
        return self.executor.submit(self._state).result()

    def _state(self) -> State:
        told = finite(self._controller.status())
        plan, events = told.pop("plan", None), told.pop("membership_events")
        if plan:
            self._plans[str(plan["epoch"])] = plan
        members, newest = self._members(told), told["round"]
        return {
            "network": self._overview(),
            "sites": self._sites(),
            "hosts": members,
            "links": {},
            "traffic": {},
            "events": {
                str(number): {"at_s": event["at_s"], "kind": event["kind"], "target": event["member"]}
                for number, event in enumerate(events, start=1)
            },
            "training": {name: value for name, value in told.items() if name != "swaps"}
            | {"workers": self._records.spent()},
            "plans": dict(self._plans),
            "rounds": dict(list(self._records.until(newest).items())[-MOST_ROUNDS:]),
            "decisions": self._records.decisions(),
        }

    def status(self) -> NetworkStatus:
        state = self.state()
        return NetworkStatus(**state["network"], hosts=dict(state["hosts"]), links={})

    def history(self, since: int | None) -> LinkHistory:
        raise ApiProblem(NOT_HERE, "a standalone controller has no emulated network, so that there is no link history")

    def metrics(self) -> bytes:
        return metrics_of(self.executor.submit(self._controller.status).result())

    def do(self, request: Request) -> dict[str, Any]:
        try:
            self._controller.do(request)
        except NotForMembers as error:
            raise ApiProblem(NOT_HERE, str(error)) from error
        except ValueError as error:  # PolicyError and GraphError
            raise ApiProblem(WRONG, str(error)) from error
        return {}

    def _overview(self) -> dict[str, Any]:
        return {
            "kind": "controller",
            "name": self._directory.name,
            "topology": "",
            "file": "",
            "backend": "none",
            "switch": "none",
            "transport": {},
            "pid": os.getpid(),
            "failure": self._controller.failure or None,
            "replay": {"elapsed_s": 0.0, "links": 0, "late_ms_p99": None, "paused": False},
        }

    def _sites(self) -> dict[str, Any]:
        """Return a site for each member, without a position: the controller does not know where the machine is."""
        members = self._controller.spec.members
        return {name: {"label": None, "position": None, "workers": [name]} for name in members}

    def _members(self, told: dict[str, Any]) -> dict[str, Any]:
        there = set(told["joined"]) - set(told["left"])
        return {
            name: {
                "kind": "worker",
                "site": name,
                "address": self._address(name),
                "pid": 0,
                "start_ticks": None,
                "running": name in there,
            }
            for name in self._controller.spec.members
        }

    def _address(self, member: str) -> str:
        hello = self._controller.hellos.get(member)
        return "" if hello is None else hello.address[0]
