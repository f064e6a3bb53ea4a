"""The host breaks under a run: it ends with that reason, a summary and its logs, and whatever can be taken away is."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import docker
import pytest

from testbed.emulation import cleanup
from testbed.emulation.label import LABEL
from testbed.run.guards.disk import LEAST_FREE_BYTES
from tests.run.pair import endless
from tests.run.running import NOTHING, TRAINS, Running
from tests.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


def reason(running: Running) -> str:
    """Why it ended, as its summary says first."""
    summary = json.loads((running.directory / "summary.json").read_text())
    assert summary["verdict"] == "suspect"
    return str(summary["reasons"][0])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={2 * LEAST_FREE_BYTES}", "none", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def test_a_full_disk_is_named_and_no_worker_is(small_disk: Path) -> None:
    with Running(small_disk, endless(small_disk)) as running:
        running.wait_for(TRAINS)
        (small_disk / "others").write_bytes(bytes(LEAST_FREE_BYTES))
        assert running.end() == 1, running.output
    assert reason(running).startswith("the disk of runs/pair-") and " is full: " in reason(running)
    assert "-w0" not in reason(running)
    assert all((running.directory / "logs" / f"{name}.log").exists() for name in ("quito-w0", "lima-w0"))
    assert running.left_behind == NOTHING
    with Running(small_disk, endless(small_disk)) as another:
        assert another.end() == 3, "none is begun where there is no room"


def test_a_disk_that_gets_full_before_there_is_a_controller_is_named(small_disk: Path) -> None:
    """Which ends then, and has no room to say why."""
    with Running(small_disk, endless(small_disk)) as running:
        running.wait_for("links measured")
        with suppress(OSError), (small_disk / "others").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(LEAST_FREE_BYTES // 64))
        assert running.end() == 1, running.output
    assert reason(running).startswith("the disk of runs/pair-") and " is full: " in reason(running)
    assert running.left_behind == NOTHING


class Relay:
    """A socket in front of the engine's; `die` closes it, and every connection through it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                ours, _ = self._listener.accept()
            except OSError:
                return
            engine = socket.socket(socket.AF_UNIX)
            engine.connect("/var/run/docker.sock")
            self._open += [ours, engine]
            for source, target in ((ours, engine), (engine, ours)):
                threading.Thread(target=_pass_on, args=(source, target), daemon=True).start()

    def die(self) -> None:
        self.path.unlink(missing_ok=True)
        for each in (self._listener, *self._open):
            with suppress(OSError):  # it ended before
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return


def test_an_engine_that_goes_is_named_and_its_workers_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    relay = Relay(tmp_path / "engine.sock")
    with monkeypatch.context() as environment:
        environment.setenv("DOCKER_HOST", f"unix://{relay.path}")
        running = Running(tmp_path, endless(tmp_path))
    with running:
        running.wait_for(TRAINS)
        relay.die()
        assert running.end() == 1, running.output
    assert reason(running).startswith(f"the Docker engine at unix://{relay.path} has not answered for ")
    client, name, said = docker.from_env(), running.directory.name, " ".join(running.output.split())
    assert f"the containers of {name} are killed, but the engine did not remove them" in said
    assert f"`testbed clean --name {name}` then takes the containers away" in said
    filters = {"label": f"{LABEL}={name}"}  # an engine hears of ends that are not its doing a moment after them
    until(lambda: [each["State"] for each in client.api.containers(all=True, filters=filters)] == ["exited"] * 2)
    cleanup.clean(client, name)
    assert running.left_behind == NOTHING
