"""The controller with the members it is for: real sessions that reduce real tensors over loopback."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from testbed import sync
from testbed.api.requests import ForcePolicy
from testbed.controller.model.spec import Elasticity
from testbed.protocol import AbortGraph, ControlMessage, Job, Report
from tests.controller.runs import group_of, mesh, plan_of, reaches, running, spec_of, swaps_of
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.local

ROUNDS = 50


def member(control: Path, name: str, value: float, means: dict[str, set[float]], swapped: threading.Event) -> None:
    """Its second half takes longer until all `swapped`."""
    with sync.join(f"unix:{control}/{name}/control.sock", name, "127.0.0.1") as session:
        for number in range(ROUNDS):
            if number > ROUNDS // 2:
                swapped.wait(1.0)
            tensor = torch.full((50_000,), value)
            session.allreduce(tensor)
            means.setdefault(name, set()).update(tensor.unique().tolist())
            session.report({"loss": 1.0})
        session.finish("same")


async def test_sessions_go_through_forced_swaps_without_losing_an_update(tmp_path: Path) -> None:
    view = mesh()
    means: dict[str, set[float]] = {}
    swapped = threading.Event()
    jobs = dict.fromkeys(view.names, Job(ROUNDS))
    async with running(spec_of(view, jobs=jobs), tmp_path) as controller:
        threads = [
            threading.Thread(target=member, args=(tmp_path / "s", name, float(i), means, swapped), daemon=True)
            for i, name in enumerate(view.names)
        ]
        for thread in threads:
            thread.start()
        await reaches(controller, lambda: bool(group_of(controller).rounds.complete))
        for epoch, server in enumerate(("d-w0", "b-w0"), start=1):
            controller.do(ForcePolicy(policy="star", options={"server": server}))
            await reaches(controller, lambda epoch=epoch: plan_of(controller).epoch == epoch)
        swapped.set()
        await asyncio.wait_for(controller.finished.wait(), PATIENCE_S)
        assert controller.state == "done", controller.failure
        assert all(swap.lost_updates == swap.duplicated_updates == 0 for swap in swaps_of(controller))
        assert [done.number for done in group_of(controller).rounds.complete] == list(range(1, ROUNDS + 1))
        for thread in threads:
            await asyncio.to_thread(thread.join, PATIENCE_S)
    assert means == {name: {2.0} for name in view.names}  # the mean of 0, 1, 2, 3, 4


async def test_the_error_that_an_elastic_member_leaves_by_is_heard_though_a_message_is_on_its_way(
    tmp_path: Path,
) -> None:
    """A line closed before the controller has read the goodbye fails that message, and the goodbye is lost unread."""
    view = mesh()
    failing = view.names[0]
    reported, early, over = threading.Event(), threading.Event(), threading.Event()

    def member(name: str) -> None:
        with (
            suppress(KeyError, sync.SyncError),
            sync.join(f"unix:{tmp_path}/s/{name}/control.sock", name, "127.0.0.1") as session,
        ):
            session.allreduce(torch.ones(10))
            if name != failing:
                over.wait(PATIENCE_S)
                raise KeyError("the test is over")
            session.report()
            close = session._connection.close
            session._connection.close = lambda: (close(), early.set())  # type: ignore[method-assign]
            reported.wait(PATIENCE_S)
            raise KeyError("a mistake")

    jobs = dict.fromkeys(view.names, Job(ROUNDS))
    spec = spec_of(view, jobs=jobs, elastic=Elasticity(quorum=2), period_s=3600.0)
    async with running(spec, tmp_path) as controller:
        received = controller.received

        def send_late(message: ControlMessage) -> None:
            if isinstance(message, Report) and message.member == failing:
                reported.set()
                early.wait(0.5)  # a member that does not wait has this long to close its line
                controller.server.send(failing, AbortGraph())
            received(message)

        controller.received = send_late  # type: ignore[method-assign]
        threads = [threading.Thread(target=member, args=(name,), daemon=True) for name in view.names]
        for thread in threads:
            thread.start()
        await reaches(controller, lambda: bool(controller.coordinator.events))
        over.set()
        [left] = [event for event in controller.coordinator.events if event.member == failing]
        assert left.kind == "left" and "KeyError: 'a mistake'" in left.why
        for thread in threads:
            await asyncio.to_thread(thread.join, PATIENCE_S)
