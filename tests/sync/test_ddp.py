"""DistributedDataParallel over sessions: one process a member, and an ordinary loop with one line more."""

from __future__ import annotations

import json
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from testbed.plan import Group, Plan
from testbed.protocol import Goodbye
from testbed.sync.allreduce import ELEMENT_TYPES
from testbed.sync.codecs import Residual
from testbed.sync.ddp import hook_of
from testbed.sync.executor import Work
from testbed.sync.session import Session
from testbed.sync.session import _check as session_check
from tests.program import ForkedProgram, preload
from tests.sync.controller import Controller, job
from tests.sync.plans import chain, names
from tests.sync.sessions import run as run_sessions
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.local

MEMBERS = names(2)

preload("testbed.sync", "torch._dynamo")


def run(tmp_path: Path, plan: Plan, mode: str) -> list[tuple[int, str, str]]:
    """Run the members' processes. Returns each member's exit code and output."""
    with Controller(tmp_path, plan, job()) as controller, ExitStack() as stack:
        processes = [
            stack.enter_context(ForkedProgram("-m", "tests.sync.ddp_member", controller.address, member, mode))
            for member in plan.members
        ]
        controller.await_messages(Goodbye, len(processes), 240)
        outputs = [process.communicate(timeout=PATIENCE_S) for process in processes]
        return [(process.wait(), *output) for process, output in zip(processes, outputs, strict=True)]


def test_an_ordinary_loop_trains_on_all_members_data(tmp_path: Path) -> None:
    from tests.sync.strategies.training import by_mean_gradient

    (one, first, errors), (other, second, _) = run(tmp_path, Plan(0, MEMBERS, (chain(MEMBERS),)), "to the end")
    assert (one, other) == (0, 0), errors
    assert first == second
    rounds, _, parameters = first.partition(" ")
    expected = by_mean_gradient(5, dict.fromkeys(MEMBERS, 1.0)).tolist()
    assert json.loads(parameters) == pytest.approx(expected, abs=1e-6)
    assert int(rounds) > 5, "more than one bucket a step"


def test_a_plan_with_groups_is_refused(tmp_path: Path) -> None:
    groups = tuple(Group((member,), (chain((member,)),)) for member in MEMBERS)
    plan = Plan(0, MEMBERS, (chain(MEMBERS),), groups=groups, period=2)
    for code, _, errors in run(tmp_path, plan, "to the end"):
        assert code == 1
        assert "round 1, epoch 0" in errors and "local_sgd" in errors


def test_a_failing_round_comes_out_of_backward(tmp_path: Path) -> None:
    (code, _, errors), _ = run(tmp_path, Plan(0, MEMBERS, (chain(MEMBERS),)), "failing")
    assert code == 1
    assert "epoch 0: m1 is gone" in errors


class OneMember:
    """The reducer of a single member, which refuses what a session refuses, and keeps the residuals that it gets."""

    whole = True

    def __init__(self) -> None:
        self.residuals: list[Residual | None] = []

    def allreduce(
        self, tensor: torch.Tensor, weight: float, residual: Residual | None, async_op: bool
    ) -> Work[OneMember]:
        session_check(tensor, weight, residual)
        self.residuals.append(residual)
        future: Future[OneMember] = Future()
        future.set_result(self)
        return Work(future)


class Bucket:
    """DDP's bucket of the gradients of some parameters, in their order."""

    def __init__(self, *parameters: torch.Tensor) -> None:
        self._parameters = list(parameters)
        self._values = torch.cat([torch.ones_like(parameter) for parameter in parameters])

    def buffer(self) -> torch.Tensor:
        return self._values

    def index(self) -> int:
        return 0

    def parameters(self) -> list[torch.Tensor]:
        return self._parameters


@pytest.mark.parametrize("dtype", ELEMENT_TYPES)
def test_gradients_of_each_type_are_reduced_and_codecs_are_for_float32(dtype: torch.dtype) -> None:
    member, bucket = OneMember(), Bucket(torch.zeros(4, dtype=dtype))
    assert hook_of(member)(None, bucket).wait() is bucket.buffer()  # type: ignore[arg-type]
    (residual,) = member.residuals
    assert (residual is not None) == (dtype == torch.float32)


def test_a_bucket_whose_parameters_change_places_starts_without_a_residual() -> None:
    """DDP makes one bucket for the first step, and afterwards puts its parameters in the order of their gradients."""
    member, first, second = OneMember(), torch.zeros(2), torch.zeros(3)
    hook = hook_of(member)  # type: ignore[arg-type]
    for parameters in ((first, second), (second, first), (second, first)):
        hook(None, Bucket(*parameters)).wait()  # type: ignore[arg-type]
    before, after, later = member.residuals
    assert before is not after and after is later


def test_two_models_of_one_session_keep_their_own_residuals(tmp_path: Path) -> None:
    def work(session: Session) -> bool:
        member, one, other = OneMember(), Bucket(torch.zeros(4)), Bucket(torch.zeros(4))
        session.allreduce = member.allreduce  # type: ignore[assignment, method-assign]
        hooks = session.ddp_hook, session.ddp_hook
        for _ in range(2):
            for hook, bucket in zip(hooks, (one, other), strict=True):
                hook(None, bucket).wait()  # type: ignore[arg-type]
        first, second, *again = member.residuals
        return first is not second and again == [first, second]

    assert all(run_sessions(tmp_path, Plan(0, MEMBERS, (chain(MEMBERS),)), work).values())
