"""Runs that controllers are tested with: their spec, a controller that is started, members that train."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from testbed.controller.allreduce.coordinator import AllReduceCoordinator
from testbed.controller.model.clocks import SYSTEM, Clocks, SystemClocks
from testbed.controller.model.membership import GroupState
from testbed.controller.model.plan_history import Swap
from testbed.controller.model.spec import ControllerSpec, PlanningSpec
from testbed.controller.replanning.planner import Planner
from testbed.controller.service import ControllerService
from testbed.plan import Plan
from testbed.planning import View
from testbed.protocol import Job
from tests.controller.fleet import Fleet
from tests.planning.networks import sites, view_of
from tests.waiting import PATIENCE_S

ROUNDS = 1000
JOB = Job(ROUNDS)


class FreeProcessor(SystemClocks):
    """Considering plans costs nothing: what it may take of a busy machine, and so when it is done, is not to count."""

    def processor(self) -> float:
        return 0.0


def mesh(**slower: float) -> View:
    """Four meshed sites of unequal links, two members in the first; `a_b=3` divides the rate of a and b's link."""
    rates = {"a_b": 40, "a_c": 60, "a_d": 50, "b_c": 45, "b_d": 55, "c_d": 35}
    edges = [(*name.split("_"), rate / slower.get(name, 1)) for name, rate in rates.items()]
    return view_of(sites(*edges, delay=0.02), {"a": 2}, model_bytes=4_000_000, knowledge="measured")


def spec_of(view: View, **changes: Any) -> ControllerSpec:
    """Return the spec of members that reduce by plans for the view; `changes` are of the spec or of its planning."""
    own = {name: changes.pop(name) for name in set(changes) & ControllerSpec.model_fields.keys()}
    planning = PlanningSpec(**{"view": view, "policy": "mst", "period_s": 0.0, **changes})
    values = {"members": view.names, "secret": "secret", "jobs": dict.fromkeys(view.names, JOB), "planning": planning}
    return ControllerSpec(**{**values, **own})


def planner_of(controller: ControllerService) -> Planner:
    assert isinstance(controller.coordinator, AllReduceCoordinator)
    return controller.coordinator.planner


def group_of(controller: ControllerService) -> GroupState:
    """The members that reduce in rounds, with their plans and rounds."""
    assert isinstance(controller.coordinator, AllReduceCoordinator)
    return controller.coordinator.group


def plan_of(controller: ControllerService) -> Plan:
    """The plan in force."""
    return group_of(controller).plans.plan


def swaps_of(controller: ControllerService) -> list[Swap]:
    """The plans that followed the first one, and the one that is to be the next."""
    return group_of(controller).plans.swaps


async def reaches(controller: ControllerService, condition: Callable[[], bool]) -> None:
    """Wait until a change of the controller makes the condition true. Raises AssertionError where the run fails."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            assert controller.state != "failed", controller.failure
            await controller.changes.wait()
            controller.changes.clear()


@asynccontextmanager
async def running(spec: ControllerSpec, tmp_path: Path, clocks: Clocks = SYSTEM) -> AsyncIterator[ControllerService]:
    controller = ControllerService(spec, tmp_path / "s", tmp_path / "out", clocks=clocks)
    await controller.start()
    try:
        yield controller
    finally:
        await controller.close()


@asynccontextmanager
async def training(
    spec: ControllerSpec, tmp_path: Path, network: View
) -> AsyncIterator[tuple[ControllerService, Fleet]]:
    async with running(spec, tmp_path, FreeProcessor()) as controller:
        fleet = Fleet(tmp_path / "s", network, thinks=lambda: planner_of(controller).considering)
        await fleet.join()
        try:
            yield controller, fleet
        finally:
            await fleet.hang_up()
