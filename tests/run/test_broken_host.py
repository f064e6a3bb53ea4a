"""The host breaks under a run: it ends with that reason, a summary and its logs, and whatever can be taken away is."""

from __future__ import annotations

import json
import math
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import docker
import pytest
import yaml

from testbed.emulation import cleanup
from testbed.emulation.label import LABEL
from testbed.errors import CANNOT, FAILED
from testbed.run.watchdog import LEAST_FREE_BYTES
from tests.cli.standing import command, environment
from tests.run.pair import TOPOLOGY, endless
from tests.run.running import NOTHING, TRAINS, Running
from tests.waiting import until

pytestmark = pytest.mark.system


def reason(running: Running) -> str:
    """Why it ended, as its summary says first."""
    summary = running.summary
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
        assert running.end() == CANNOT, running.output
    assert reason(running).startswith("the disk of runs/pair-") and " is full: " in reason(running)
    assert running.left_behind == NOTHING


class Relay:
    """A socket in front of the engine's; `die` closes it, and every connection through it. After so many requests that
    it `answers`, it does so itself."""

    def __init__(self, path: Path, answers: float = math.inf) -> None:
        self.path = path
        self._left = answers
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
            threading.Thread(target=_pass_on, args=(ours, engine, self._take), daemon=True).start()
            threading.Thread(target=_pass_on, args=(engine, ours), daemon=True).start()

    def _take(self, data: bytes) -> bool:
        """Whether what a client sends is passed on."""
        self._left -= data.split(b" ")[0] in (b"GET", b"POST", b"DELETE", b"HEAD")
        if self._left < 0:
            self.die()
        return self._left >= 0

    def die(self) -> None:
        self.path.unlink(missing_ok=True)
        for each in (self._listener, *self._open):
            with suppress(OSError):  # it ended before
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def _pass_on(source: socket.socket, target: socket.socket, take: Callable[[bytes], bool] = lambda _: True) -> None:
    try:
        while (data := source.recv(1 << 16)) and take(data):
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
    assert f"the containers of {name} were killed, but the engine did not remove them" in said
    assert f"`testbed network clean --name {name}` then removes the containers" in said
    filters = {"label": f"{LABEL}={name}"}  # an engine hears of ends that are not its doing a moment after them
    until(lambda: [each["State"] for each in client.api.containers(all=True, filters=filters)] == ["exited"] * 2)
    cleanup.clean(client, name)
    assert running.left_behind == NOTHING


#: A launch on two workers begins with more requests than these, about the image. The next start its containers, and the
#: last are about its programs, and about the clean-up after them.
IMAGE = 3


@pytest.mark.parametrize("answers", [IMAGE, 8, 15, 20, 25, 30])
def test_an_engine_that_goes_in_between_ends_a_launch_in_words(
    answers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = Relay(tmp_path / "engine.sock", answers)
    tmp_path.chmod(0o755)
    (tmp_path / "pair.yaml").write_text(yaml.safe_dump(TOPOLOGY))
    words = command("launch", tmp_path / "pair.yaml", "--quiet", "--", "sleep", "3")
    with monkeypatch.context() as patched:
        patched.setenv("DOCKER_HOST", f"unix://{relay.path}")
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment())
    relay.die()
    assert f"unix://{relay.path}" in done.stderr
    assert "Traceback" not in done.stderr
    (directory,) = (path for path in (tmp_path / "runs").iterdir() if not path.is_symlink())
    cleanup.clean(docker.from_env(), directory.name)
    assert json.loads((directory / "summary.json").read_text())["verdict"] == "suspect"
    started = "training_started_s" in json.loads((directory / "manifest.json").read_text())
    assert done.returncode == (FAILED if started else CANNOT), done.stderr
    assert not started or answers > IMAGE
    assert (directory / "report.html").is_file() == started
