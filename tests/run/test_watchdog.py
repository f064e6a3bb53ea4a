"""What ends a run that nobody else would end, with its reason: each of the things that are watched, broken for real."""

from __future__ import annotations

import errno
import os
import signal
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from testbed.controller.client import ControllerClient
from testbed.controller.server.member_server import SOCKET
from testbed.emulation.containers import engine
from testbed.run import watchdog
from testbed.run.controller_process import ControllerFailed, ControllerProcess
from testbed.run.errors import RunFailed
from testbed.run.watchdog import LEAST_QUIET_S, EngineWatch, Watchdog, check_machine, longest_quiet_s
from testbed.spec.experiment import Experiment
from tests.controller.runs import mesh, spec_of
from tests.waiting import PATIENCE_S, stop, until

pytestmark = pytest.mark.local

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


def smoke(**overrides: str) -> Experiment:
    return Experiment.load(
        EXPERIMENTS / "smoke.yaml", {name.replace("_", "."): text for name, text in overrides.items()}
    )


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[ControllerProcess]:
    (tmp_path / "logs").mkdir()
    (tmp_path / "s").mkdir()
    with ControllerProcess(spec_of(mesh()), tmp_path / "s", tmp_path) as process:
        yield process


def test_the_sockets_of_a_killed_controller_are_not_taken_for_the_next_one_s(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    spec, folder = spec_of(mesh()), tmp_path / "s"
    for name in spec.members:
        (folder / "control" / name).mkdir(parents=True)
    process = ControllerProcess(spec, folder, tmp_path)
    for path in process._sockets:
        path.touch()
    broken = spec.model_copy(update={"members": ("nobody",)})
    process._spec = broken
    for name in broken.members:
        (folder / "control" / name).mkdir(parents=True)
        (folder / "control" / name / SOCKET).touch()
    with pytest.raises(ControllerFailed), process:
        pass


def failure_of(dog: Watchdog) -> str:
    """Why it ends the run; it does within seconds."""
    deadline = time.monotonic() + PATIENCE_S
    with pytest.raises(RunFailed) as raised:
        while time.monotonic() < deadline:
            dog.status()
            time.sleep(0.01)
    return str(raised.value)


# The controller -----------------------------------------------------------------------------------------------------


class Broken(socketserver.BaseRequestHandler):
    """Answers every request with an error, as where a status can't be put together."""

    def handle(self) -> None:
        while self.request.recv(1 << 16):
            pass
        self.request.sendall(b'{"failed": "KeyError()"}')


@contextmanager
def answering_errors(path: Path) -> Iterator[None]:
    path.unlink()
    with socketserver.UnixStreamServer(str(path), Broken) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def test_a_controller_that_answers_with_errors_ends_the_run(
    controller: ControllerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dog = Watchdog(smoke(), controller, tmp_path)
    while (status := dog.status()) is None:  # it does not listen yet
        time.sleep(0.01)
    assert status["state"] == "waiting"
    with answering_errors(tmp_path / "s" / "owner.sock"):
        assert dog.status() is None, "it may be busy"
        monkeypatch.setattr(watchdog, "UNANSWERED_S", 0.3)
        why = failure_of(dog)
    assert "KeyError" in why


def test_a_controller_that_stands_still_ends_the_run(
    controller: ControllerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "UNANSWERED_S", 0.3)
    controller.client = ControllerClient(tmp_path / "s" / "owner.sock", timeout_s=0.1)
    dog = Watchdog(smoke(), controller, tmp_path)
    stop(controller._process.pid)
    try:
        assert str(tmp_path / "s" / "owner.sock") in failure_of(dog)
    finally:
        os.kill(controller._process.pid, signal.SIGCONT)


# Members ------------------------------------------------------------------------------------------------------------


class Saying:
    """A controller that says what it is given."""

    def __init__(self, **status: Any) -> None:
        self.said: dict[str, Any] = dict.fromkeys(watchdog.SIGNS) | {"rounds": 60} | status
        self.client = self

    def status(self) -> dict[str, Any]:
        return dict(self.said)

    def check(self) -> None:
        """All is well."""


def test_members_that_report_nothing_new_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "longest_quiet_s", lambda _: 0.0)
    saying = Saying(state="running", round=7, joined=["a-w0", "b-w0"], left=["a-w0"])
    dog = Watchdog(smoke(), saying, tmp_path)  # type: ignore[arg-type]
    dog.status()
    for name, value in (("round", 8), ("metrics", {"loss": 1.0}), ("membership_events", [{"kind": "left"}])):
        saying.said[name] = value
        dog.status()
    why = failure_of(dog)
    assert "round 8 of 60" in why and "b-w0" in why


@pytest.mark.parametrize("state", ["waiting", "done", "failed"])
def test_a_member_that_does_not_train_need_not_come_further(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "longest_quiet_s", lambda _: 0.0)
    dog = Watchdog(smoke(), Saying(state=state), tmp_path)  # type: ignore[arg-type]
    assert [dog.status() for _ in range(3)][-1] is not None


def test_how_long_they_may_be_quiet_follows_from_the_experiment() -> None:
    assert longest_quiet_s(smoke()) == 2 * 120 + 10, "the round timeout of members, and a step"
    slow = smoke(compute_slowdown="{factor: 50, probability: 0.1}", compute_stragglers="{paris-w0: 2}")
    assert longest_quiet_s(slow) == 2 * 120 + 4 * 0.1 * 2 * 50
    local = smoke(sync="{strategy: local_sgd, every: 500, round_timeout: 5s}")
    assert longest_quiet_s(local) == 2 * 5 + 500 * 10
    assert longest_quiet_s(smoke(sync="{round_timeout: 1s}")) == LEAST_QUIET_S


# The host -----------------------------------------------------------------------------------------------------------


def test_an_engine_that_does_not_answer_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    monkeypatch.setattr(watchdog, "ASK_S", 0.01)
    monkeypatch.setattr(watchdog, "SILENT_S", 0.3)
    with Watchdog(smoke(), Saying(state="running"), tmp_path) as dog:  # type: ignore[arg-type]
        why = failure_of(dog)
    assert f"unix://{tmp_path}/docker.sock" in why


def test_an_engine_that_cannot_be_asked_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(engine, "client_of", refuse)
    monkeypatch.setattr(watchdog, "ASK_S", 0.01)
    monkeypatch.setattr(watchdog, "SILENT_S", 0.3)
    with Watchdog(smoke(), Saying(state="running"), tmp_path) as dog:  # type: ignore[arg-type]
        assert os.strerror(errno.EMFILE) in failure_of(dog)


def test_an_engine_may_be_silent_for_a_short_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    assert EngineWatch().failure is None


def test_a_command_s_run_ends_with_the_engine_of_its_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    monkeypatch.setattr(watchdog, "ASK_S", 0.01)
    monkeypatch.setattr(watchdog, "SILENT_S", 0.0)
    check_machine([tmp_path], None)
    with EngineWatch() as watch:
        until(lambda: watch.failure is not None)
        with pytest.raises(RunFailed) as raised:
            check_machine([tmp_path], watch)
    assert raised.value.rule == watchdog.HOST and f"unix://{tmp_path}/docker.sock" in str(raised.value)


def test_a_disk_without_room_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "LEAST_FREE_BYTES", 1 << 60)
    dog = Watchdog(smoke(), Saying(state="running"), tmp_path)  # type: ignore[arg-type]
    assert str(tmp_path) in failure_of(dog)


def test_a_directory_that_is_removed_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    dog = Watchdog(smoke(), Saying(state="running"), tmp_path / "run")  # type: ignore[arg-type]
    dog.check_host()
    (tmp_path / "run").rmdir()
    with pytest.raises(RunFailed, match="gone"):
        dog.check_host()


def test_another_part_that_breaks_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    reasons: list[str | None] = [None]
    dog = Watchdog(smoke(), Saying(state="running"), tmp_path, lambda: reasons[0])  # type: ignore[arg-type]
    dog.check_host()
    reasons[0] = "the SSH client of south has ended"
    with pytest.raises(RunFailed, match="south") as raised:
        dog.check_host()
    assert raised.value.rule == watchdog.HOST
