"""Workers as processes, joined to a small controller over loopback."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from testbed.plan import Plan
from testbed.protocol import Goodbye, Hello, Job, Report
from testbed.starts import new_scheme
from testbed.worker.loop import Spent, TrainingProgress
from testbed.worker.pace import Paced
from tests.program import ForkedProgram, preload, spawn
from tests.sync.controller import Controller, job
from tests.sync.plans import chain, names, star
from tests.waiting import PATIENCE_S
from tests.worker.workloads import workload

pytestmark = pytest.mark.local

preload("testbed.worker.loop")

#: How a process is started, of what stands after `python`.
Start = Callable[..., Popen[str] | ForkedProgram]


def write_digits(folder: Path, count: int = 200) -> None:
    """Images of the format that the worker image holds: each digit is a bar at a height of its own, plus noise."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 10
    images = torch.rand(count, 8, 8, generator=generator) * 0.3
    images.view(count, 64)[torch.arange(count), labels * 6] += 1
    (folder / "digits").mkdir()
    (folder / "digits" / "images.f32").write_bytes(bytes(images.flatten().view(torch.uint8).tolist()))
    (folder / "digits" / "labels.i64").write_bytes(bytes(labels.view(torch.uint8).tolist()))
    index = {
        "images": {"file": "images.f32", "dtype": "float32", "shape": [count, 8, 8]},
        "labels": {"file": "labels.i64", "dtype": "int64", "shape": [count]},
    }
    (folder / "digits" / "digits.json").write_text(json.dumps(index))


def trains(rounds: int, **work: Any) -> Job:
    """The job of a workload."""
    return job(rounds, workload=workload(**work).to_json())


def command(controller: Controller, member: str, data: Path) -> list[str]:
    """The words after `python` that start a worker."""
    words = ["--name", member, "--control", controller.address, "--address", "127.0.0.1", "--data", str(data)]
    return ["-m", "testbed.worker", *words]


def train(tmp_path: Path, work: Job, plan: Plan, start: Start = ForkedProgram) -> Controller:
    """A run to its end; every worker must have left with exit code 0."""
    write_digits(tmp_path)
    with Controller(tmp_path, plan, work) as controller, ExitStack() as processes:
        workers = [processes.enter_context(start(*command(controller, member, tmp_path))) for member in plan.members]
        controller.await_messages(Goodbye, len(workers), 240)
        for worker in workers:
            assert worker.wait(PATIENCE_S) == 0, worker.communicate()[1]
    return controller


@pytest.mark.parametrize(
    ("model", "start"), [("cnn", spawn), ("gpt-small", ForkedProgram), ("synthetic", ForkedProgram)]
)
def test_all_members_end_with_the_same_parameters(tmp_path: Path, model: str, start: Start) -> None:
    members = names(2)
    adam = {"batch": 8, "optimizer": "adam", "learning_rate": 1e-3}
    work = trains(4, model=model, parameters=5000, evaluate_every=2, **adam)
    controller = train(tmp_path, work, Plan(0, members, (chain(members),)), start)
    digests = {goodbye.digest for goodbye in controller.goodbyes()}
    assert len(digests) == 1 and len(digests.pop()) == 64
    assert {goodbye.rounds for goodbye in controller.goodbyes()} == {4}
    evaluated = [r for r in controller.reports() if "accuracy" in r.metrics]
    wanted = set() if model == "synthetic" else {("m0", 2), ("m0", 4)}
    assert {(r.member, r.round) for r in evaluated} == wanted


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        ("gradients", {"powersgd_rank": 2}),
        ("local_sgd", {"every": 3}),
        ("post_local_sgd", {"start": 2, "every": 2}),
        ("des_loc", {"every": 3, "first": 1}),
        ("diloco", {"every": 4, "fragments": 2, "delay": 1}),
        ("sparseloco", {"every": 3}),
        ("muloco", {"every": 3}),
    ],
)
def test_every_scheme_has_its_rounds_and_ends_agreed(tmp_path: Path, scheme: str, options: dict[str, object]) -> None:
    members = names(2)
    adam = {"batch": 8, "optimizer": "adam", "learning_rate": 1e-3}
    work = replace(trains(6, model="cnn", evaluate_every=100, **adam), scheme=scheme, options=options)
    controller = train(tmp_path, work, Plan(0, members, (chain(members),), codec="int8"))
    assert len({goodbye.digest for goodbye in controller.goodbyes()}) == 1
    assert {goodbye.rounds for goodbye in controller.goodbyes()} == {6}
    assert sorted(report.round for report in controller.reports()) == sorted([*range(1, 7)] * 2)
    assert [(r.member, r.round) for r in controller.reports() if "accuracy" in r.metrics] == [("m0", 6)]


def test_a_scheme_from_a_file_trains(tmp_path: Path) -> None:
    (file,) = new_scheme("mine", tmp_path)
    members = names(2)
    sgd = {"batch": 8, "optimizer": "sgd", "learning_rate": 1e-3}
    work = replace(trains(3, model="cnn", evaluate_every=100, **sgd), scheme=str(file), options={"every": 2})
    controller = train(tmp_path, work, Plan(0, members, (chain(members),)))
    assert len({goodbye.digest for goodbye in controller.goodbyes()}) == 1
    assert {goodbye.rounds for goodbye in controller.goodbyes()} == {3}


def test_a_declared_step_time_is_kept(tmp_path: Path) -> None:
    members = names(2)
    work = trains(5, model="cnn", batch=8, step_seconds=0.2)
    controller = train(tmp_path, work, Plan(0, members, (star(members, "m0"),)))
    for report in controller.reports():
        assert report.paced_s > 0 or report.late_s > 0
        assert report.compute_s + report.paced_s + report.late_s > 0.15
        assert report.steps == 1


def test_the_steps_of_a_report_are_counted_and_the_late_ones_among_them() -> None:
    spent = Spent()
    for paced in (Paced(0.1, 0.0), Paced(0.0, 0.5, is_late=True), Paced(0.0, 0.01)):
        spent.add(paced)
    assert (spent.steps, spent.late_steps, spent.late_s) == (3, 1, 0.5)


def test_a_member_that_joins_counts_on_from_the_steps_and_the_time_of_another() -> None:
    now = [100.0]
    one, other = TrainingProgress(lambda: now[0]), TrainingProgress(lambda: 5.0)
    one.taken, now[0] = 7, 130.0
    other.load_state_dict(one.state_dict())
    assert (other.taken, other.elapsed_s) == (7, 30.0)


def test_what_does_not_exist_is_told_to_the_controller(tmp_path: Path) -> None:
    plan = Plan(0, names(1), (star(names(1), "m0"),))
    with (
        Controller(tmp_path, plan, trains(1, model="oracle")) as controller,
        ForkedProgram(*command(controller, "m0", tmp_path)) as worker,
    ):
        controller.await_messages(Goodbye, 1)
        assert worker.wait(PATIENCE_S) == 1
    assert "oracle" in controller.goodbyes()[0].error


def test_a_killed_worker_is_named_by_the_others(tmp_path: Path) -> None:
    members = names(3)
    work = trains(100_000, parameters=1000)
    with Controller(tmp_path, Plan(0, members, (star(members, "m2"),)), work) as controller, ExitStack() as processes:
        workers = {m: processes.enter_context(ForkedProgram(*command(controller, m, tmp_path))) for m in members}
        controller.await_messages(Report, 6)
        workers["m2"].kill()
        controller.await_messages(Goodbye, 2)
        assert [workers[m].wait(PATIENCE_S) for m in ("m0", "m1")] == [1, 1]
    assert all("m2" in goodbye.error and "epoch 0" in goodbye.error for goodbye in controller.goodbyes())


def test_the_garbage_collector_does_not_look_at_imported_objects(tmp_path: Path) -> None:
    """Otherwise it waits with the oldest objects until a quarter as many are new as PyTorch has."""
    counts = "print(gc.get_freeze_count(), len(gc.get_objects()))"
    program = f"import gc; from testbed.worker.__main__ import main; main(); {counts}"
    nowhere = ("--name", "m0", "--control", f"unix:{tmp_path}/none", "--patience", "0.1")
    with spawn("-c", program, *nowhere) as worker:
        output, errors = worker.communicate(timeout=PATIENCE_S)
    assert "m0: " in errors
    frozen, looked_at = map(int, output.split())
    assert frozen > 100_000 and looked_at < 10_000


def test_a_worker_that_waits_for_others_says_where_it_stands_and_ends_at_sigterm(tmp_path: Path) -> None:
    members = names(2)
    plan = Plan(0, members, (chain(members),))
    (tmp_path / "m0.token").write_text("from a file\n")
    token = ("--token-file", str(tmp_path / "m0.token"))
    with (
        Controller(tmp_path, plan, trains(1)) as controller,
        spawn(*command(controller, "m0", tmp_path), *token) as worker,
    ):
        controller.await_messages(Hello, 1)
        assert [hello.token for hello in controller.received(Hello)] == ["from a file"]  # type: ignore[attr-defined]
        assert b"from a file" not in Path(f"/proc/{worker.pid}/cmdline").read_bytes()
        worker.send_signal(signal.SIGUSR1)
        worker.terminate()
        assert worker.wait(PATIENCE_S) == 143
        # It may not have come back from sending its hello yet.
        assert '/testbed/sync/control_channel.py", line' in worker.stderr.read()
