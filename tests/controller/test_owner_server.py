"""One more member than a run began with: real sessions over loopback, and the runs that take none."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from testbed import sync
from testbed.controller.client import AddMember
from testbed.controller.model.spec import Elasticity, Newcomer
from testbed.controller.owner_server import NotEnrolled, answer, enrol
from testbed.controller.server.member_server import TcpEndpoint
from testbed.controller.service import ControllerService
from testbed.planning import View
from testbed.planning.graphs import make_graph
from testbed.protocol import Job
from tests.controller.runs import group_of, mesh, reaches, running, spec_of
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.local

ROUNDS = 60
STEP_S = 0.04

#: The members at the end, and those with which a run begins.
WHOLE = mesh()
NEW = "d-w0"
FIRST = WHOLE.among(set(WHOLE.names) - {NEW})
GOSSIP = {"edges": list(make_graph("complete", FIRST.names).edges)}


def member(control: Path, name: str, value: float, means: dict[str, list[float]], is_in: threading.Event) -> None:
    """Train for ROUNDS rounds. `is_in` is set once the new member has reduced its first tensor.

    Until then the other members wait before each round, for STEP_S seconds in the first half and for a second in the
    other one: the new member comes in between two rounds, and a member that has only received its state is not in yet.
    """
    with sync.join(f"unix:{control}/{name}/control.sock", name, "127.0.0.1") as session:
        taken = {"rounds": 0}
        session.register_state_dict_fn("taken", load_state_dict=taken.update, state_dict=taken.copy)
        with pytest.raises(ValueError, match="taken"):
            session.register_state_dict_fn("taken", taken.update, taken.copy)
        first = session.share()
        assert taken == {"rounds": first}, "a new member starts from another's state"
        for number in range(first, ROUNDS):
            if name != NEW:
                is_in.wait(STEP_S if number < ROUNDS // 2 else 1.0)
            tensor = torch.full((1000,), value)
            session.allreduce(tensor)
            if name == NEW:
                is_in.set()
            taken["rounds"] += 1
            session.step_done()
            means.setdefault(name, []).append(tensor[0].item())
            session.report({"loss": 1.0})
        session.finish("same")


async def enrolled(controller: ControllerService, name: str = NEW, view: View = WHOLE) -> None:
    routes = [(*pair, route) for pair, route in view.routes.items()]
    newcomer = Newcomer(name=name, job=Job(ROUNDS))
    await enrol(controller, AddMember(links=dict(view.links), routes=routes, newcomer=newcomer, members=view.members))


async def test_a_member_more_is_known_to_all_others_by_a_key_of_its_own_and_counts(tmp_path: Path) -> None:
    means: dict[str, list[float]] = {}
    is_in = threading.Event()
    threads = {
        name: threading.Thread(target=member, args=(tmp_path / "s", name, float(place), means, is_in), daemon=True)
        for place, name in enumerate((*FIRST.names, NEW))
    }
    jobs = dict.fromkeys(FIRST.names, Job(ROUNDS))
    async with running(spec_of(FIRST, jobs=jobs, elastic=Elasticity(quorum=2)), tmp_path) as controller:
        for name in FIRST.names:
            threads[name].start()
        await reaches(controller, lambda: bool(group_of(controller).rounds.complete))
        with pytest.raises(NotEnrolled) as caught:
            await enrolled(controller, "a-w0")
        assert (caught.value.rule, caught.value.member) == ("member", "a-w0")
        with pytest.raises(NotEnrolled) as caught:
            await enrolled(controller, "e-w0")
        assert (caught.value.rule, caught.value.member) == ("spec", "e-w0")
        await enrolled(controller)
        assert set(controller.status()["members"]) == set(WHOLE.names)
        threads[NEW].start()
        await asyncio.wait_for(controller.finished.wait(), PATIENCE_S)
        assert controller.state == "done", controller.failure
        assert [(event.kind, event.member) for event in controller.coordinator.events] == [("came", NEW)]
        for thread in threads.values():
            await asyncio.to_thread(thread.join, PATIENCE_S)
    own = means.pop(NEW)
    assert own == [2.0] * len(own) and 0 < len(own) < ROUNDS  # the mean of 0, 1, 2, 3 and 4
    for others in means.values():
        assert others == [1.5] * (ROUNDS - len(own)) + own


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({}, "not-elastic"),
        ({"planning": None, "graph": GOSSIP}, "gossip"),
        ({"elastic": Elasticity(quorum=2)}, "not-running"),
    ],
)
async def test_runs_that_take_nobody_say_what_to_do_instead(tmp_path: Path, changes: dict[str, Any], rule: str) -> None:
    async with running(spec_of(FIRST, **changes), tmp_path) as controller:
        with pytest.raises(NotEnrolled) as caught:
            await enrolled(controller)
        assert caught.value.rule == rule
        assert NEW not in controller.status()["members"] and not (tmp_path / "s" / NEW).exists()


async def test_where_secrets_were_handed_out_nobody_is_added(tmp_path: Path) -> None:
    spec = spec_of(FIRST, elastic=Elasticity(quorum=2))
    controller = ControllerService(spec, tmp_path / "s", tmp_path / "out", TcpEndpoint("127.0.0.1", 0))
    await controller.start()
    with pytest.raises(NotEnrolled) as caught:
        await enrolled(controller)
    assert caught.value.rule == "secrets"
    await controller.close()


async def test_an_internal_error_is_no_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(spec_of(FIRST), tmp_path) as controller:
        with monkeypatch.context() as patched:
            patched.setattr(controller, "status", Mock(side_effect=KeyError("round")))
            said = await answer(controller, b'{"request": "ReadStatus"}')
        assert said.keys() == {"failed"} and "KeyError" in said["failed"]
        said = await answer(controller, b'{"request": "ForcePolicy", "policy": "nosuch"}')
        assert said.keys() == {"refused"} and "nosuch" in said["refused"]
