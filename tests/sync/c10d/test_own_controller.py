"""The controller that rank 0 starts lives as long as there are members."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from testbed import sync, torch_backend
from testbed.sync.c10d import own_controller
from testbed.sync.c10d.own_controller import OwnController

pytestmark = pytest.mark.local

MEMBERS = ("rank0", "rank1")


def test_members_that_are_not_done_when_it_ends_go_on_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_controller, "END_S", 0.1)
    controller = OwnController(torch_backend.CONTROLLER, MEMBERS, "127.0.0.1", 60.0)

    def join(name: str) -> sync.Session:
        return sync.join(controller.address, name, "127.0.0.1", token=controller.tokens[name])

    def add(session: sync.Session) -> float:
        with session:
            values = torch.ones(100_000)
            session.allreduce(values)
            return float(values.sum())

    with ThreadPoolExecutor(len(MEMBERS)) as pool:
        sessions = list(pool.map(join, MEMBERS))
        controller.close()
        for session in sessions:
            session._control.join()  # it has heard all that the controller said
        assert list(pool.map(add, sessions)) == [100_000, 100_000]
