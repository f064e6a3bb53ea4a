"""Members of simulated gossip."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from testbed.simulation import gossip_simulation
from testbed.simulation.event_queue import EventQueue, SimulatedClocks
from testbed.simulation.gossip_simulation import GossipMember
from testbed.sync.gossip.effects import LocalCompute, Steps


class Busy:
    """A thread that is busy until somebody waits for it."""

    def __init__(self, *_: object, **__: object) -> None:
        self._calls: list[Callable[[], object]] = []

    def submit(self, call: Callable[[], object]) -> Future[Any]:
        self._calls.append(call)
        return Future()

    def shutdown(self, wait: bool = True, cancel_futures: bool = False) -> None:
        for call in self._calls:
            call()


@pytest.mark.pure
def test_a_last_step_that_nobody_waits_for_is_over_before_the_final_model_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []

    def program() -> Steps[None]:
        yield LocalCompute(torch.zeros(1), 0)

    def steps(parameters: torch.Tensor, iteration: int) -> torch.Tensor:
        order.append("step")
        return parameters

    steps.figures = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setattr(gossip_simulation, "ThreadPoolExecutor", Busy)
    setup: Any = SimpleNamespace(
        participant=SimpleNamespace(name="a", program=program),
        node=SimpleNamespace(partners=()),
        steps=steps,
        compute=SimpleNamespace(step_s=lambda *_: 1.0),
    )
    simulation: Any = SimpleNamespace(end=lambda *_: order.append("final model"))
    GossipMember(setup, EventQueue(SimulatedClocks(0.0)), simulation).resume()
    assert order == ["step", "final model"]
