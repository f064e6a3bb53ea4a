"""The API over a controller that stands alone: what it shows of a training, and what it does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from testbed.api.client import ApiClient, RequestRefused
from testbed.api.requests import ChangeGraph, ForcePolicy, HttpRequest, KillWorker, Stop
from testbed.api.server import ApiServer
from testbed.controller.run_records import NewLines
from testbed.controller.service import ControllerService
from testbed.controller.subject import ControllerSubject
from tests.controller.runs import mesh, running, spec_of, training
from tests.waiting import PATIENCE_S, happens

pytestmark = pytest.mark.local

VIEW = mesh()
NAMES = VIEW.names
T = TypeVar("T")


async def aside(ask: Callable[[], T]) -> T:
    """Ask from another thread, as the API's server does: the controller answers on this one."""
    return await asyncio.to_thread(ask)


@asynccontextmanager
async def served(controller: ControllerService, folder: Path) -> AsyncIterator[tuple[ControllerSubject, ApiClient]]:
    """Yield the subject of a controller and a client of the API over the subject."""
    subject = ControllerSubject(controller, folder / "out")
    server = ApiServer(subject, folder / "api.sock").__enter__()
    try:
        yield subject, ApiClient(folder / "api.sock", "the controller")
    finally:
        await aside(lambda: server.__exit__(None, None, None))


async def test_it_shows_members_rounds_and_plans_and_goes_by_another_policy(tmp_path: Path) -> None:
    async with training(spec_of(VIEW, period_s=3600.0), tmp_path, VIEW) as (controller, fleet):
        async with served(controller, tmp_path) as (subject, client):
            await fleet.run(3)
            status = await aside(client.status)
            assert (status["kind"], status["failure"], status["links"]) == ("controller", None, {})
            assert {name: host["running"] for name, host in status["hosts"].items()} == dict.fromkeys(NAMES, True)
            await aside(subject.state)

            await aside(lambda: client.do(ForcePolicy(policy="star", options={"server": "d-w0"})))
            await happens(lambda: all(1 in member.plans for member in fleet.members.values()))
            await fleet.run(2)
            state = await aside(subject.state)
            assert list(state["rounds"]) == ["1", "2", "3", "4"]  # the fleet's round 0 is before the first
            plans = state["plans"]
            assert {epoch: one["plan"]["policy"] for epoch, one in plans.items()} == {"0": "mst", "1": "star"}
            assert (plans["0"]["swap"], plans["1"]["swap"]["epoch"]) == (None, 1)
            assert plans["1"]["swap"]["active_s"] is not None
            assert state["training"]["state"] == "running" and state["training"]["policy"] == "star"
            assert [decision["reason"] for decision in state["decisions"].values()][-1:] == ["forced"]
            assert b'testbed_run_state{state="running"} 1.0' in await aside(subject.metrics)
            assert state["training"]["rounds"] is None and b"testbed_run_rounds 1" not in await aside(subject.metrics)


async def test_rounds_go_on_while_the_state_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, disk = threading.Event(), threading.Event()

    def slowly(_: NewLines) -> Iterator[dict[str, Any]]:
        reading.set()
        assert disk.wait(PATIENCE_S)
        return iter(())

    async with training(spec_of(VIEW, period_s=3600.0), tmp_path, VIEW) as (controller, fleet):
        subject = ControllerSubject(controller, tmp_path / "out")
        monkeypatch.setattr(NewLines, "__iter__", slowly)
        state = asyncio.create_task(aside(subject.state))
        await happens(reading.is_set)
        await fleet.run(2)
        await happens(lambda: controller.status()["round"] == 1)
        assert not state.done()
        disk.set()
        assert (await state)["training"]["state"] == "running"


async def test_only_the_newest_plans_and_events_are_shown_with_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("testbed.controller.subject.NEWEST", 2)
    swaps = [{"epoch": epoch, "active_s": 1.0} for epoch in range(1, 12)]
    events = [{"at_s": float(number), "kind": "left", "member": NAMES[0]} for number in range(1, 12)]
    async with running(spec_of(VIEW), tmp_path) as controller:
        subject = ControllerSubject(controller, tmp_path / "out")
        for newest in (9, 11):
            status = controller.status() | {"swaps": swaps[:newest], "membership_events": events[:newest]}
            monkeypatch.setattr(subject, "_snapshot", lambda status=status: (status, {}))
            state = await aside(subject.state)
            assert list(state["plans"]) == [str(newest - 1), str(newest)]
            shown = {number: event["at_s"] for number, event in state["events"].items()}
            assert shown == {str(number): float(number) for number in (newest - 1, newest)}


async def test_a_member_that_was_lost_is_not_shown_as_running_until_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [{"at_s": 1.0, "kind": kind, "member": NAMES[0]} for kind in ("left", "came")]
    async with running(spec_of(VIEW), tmp_path) as controller:
        subject = ControllerSubject(controller, tmp_path / "out")
        for count, running_now in ((0, True), (1, False), (2, True)):
            status = controller.status() | {"joined": list(NAMES), "membership_events": events[:count]}
            monkeypatch.setattr(subject, "_snapshot", lambda status=status: (status, dict.fromkeys(NAMES, "")))
            hosts = (await aside(subject.status)).hosts
            assert hosts[NAMES[0]].running is running_now and hosts[NAMES[1]].running


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (ForcePolicy(policy="best"), "hierarchical"),
        (ChangeGraph(kind="ring"), "ChangeGraph"),
        (KillWorker(worker="a-w0"), "KillWorker"),
    ],
    ids=["unknown-policy", "graph", "worker"],
)
async def test_what_it_cannot_do_is_refused(tmp_path: Path, request_: HttpRequest, why: str) -> None:
    async with training(spec_of(VIEW), tmp_path, VIEW) as (controller, _):
        async with served(controller, tmp_path) as (_, client):
            with pytest.raises(RequestRefused, match=why):
                await aside(lambda: client.do(request_))
            assert controller.state == "running"
            await aside(lambda: client.do(Stop(reason="enough")))
            assert (controller.state, controller.failure) == ("failed", "enough")
