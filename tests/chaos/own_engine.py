"""A Docker engine that the nemesis starts for itself, and may kill: nobody else's containers run on it.

    containerd  <-  dockerd, which is killed  <-  the run

As in the distribution, containerd is a service of its own, and survives dockerd with all containers; dockerd ends the
containers that it finds when it starts. It has a network namespace of its own, and keeps its images from case to case.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import docker

from testbed.emulation.containers import engine
from testbed.emulation.containers.image import ensure_worker_image, exists
from tests.run.running import REPOSITORY

DATA = REPOSITORY / "build" / "chaos-engine"
VARIABLE = "DOCKER_HOST"
CONTAINERD_S = 20.0


def apart(folder: Path) -> str:
    """Make a `dockerd` in `folder` that runs in a network namespace of its own, and return a PATH on which it is first.

    In the first engine's namespace it would take over the bridge and firewall rules; with `--bridge none` it would even
    delete that bridge.
    """
    programs = folder / "bin"
    programs.mkdir()
    wrapper = programs / "dockerd"
    wrapper.write_text(f'#!/bin/sh\nexec unshare --net {shutil.which("dockerd")} "$@"\n')
    wrapper.chmod(0o755)
    return f"{programs}:{os.environ['PATH']}"


class OwnEngine:
    """An engine whose sockets and state are in a folder with a short path: a socket's path has at most 107 bytes."""

    def __init__(self, folder: Path) -> None:
        self.address = f"unix://{folder}/docker.sock"
        self._record, self._log = folder / "engine.json", DATA / "log"
        self._options = (
            *("--data-root", str(DATA / "data"), "--exec-root", str(folder / "exec"), "--pidfile", str(folder / "pid")),
            *("--containerd", str(folder / "containerd.sock"), "--bridge=none", "--iptables=false"),
        )
        self._path = apart(folder)

    def start(self) -> None:
        """Start the engine, and wait until it answers. Raises EngineError."""
        before = os.environ["PATH"]
        os.environ["PATH"] = self._path
        try:
            engine.start_engine(self.address, self._options, self._record, self._log)
        finally:
            os.environ["PATH"] = before

    def kill(self) -> None:
        """Kill the engine, as a crash would."""
        if (own := engine.own_engine(self._record)) is not None:
            own.process.send(signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(own.process.pid, 0)

    def stop(self) -> None:
        """Stop the engine with all its containers, also those that a killed engine left. Raises EngineError."""
        if engine.own_engine(self._record) is None:
            self.start()
        engine.stop_engine(self._record)


@contextmanager
def used() -> Iterator[OwnEngine]:
    """Have runs use an engine of their own, which has the worker image, until the context is left."""
    DATA.mkdir(parents=True, exist_ok=True)
    image, before = ensure_worker_image(engine.connect(), lambda _: None), os.environ.get(VARIABLE)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-engine")))
        stack.callback(_unmount, folder, DATA)
        stack.enter_context(_containerd(folder))
        own = OwnEngine(folder)
        own.start()
        stack.callback(own.stop)
        _give(own, image)
        os.environ[VARIABLE] = own.address
        stack.callback(_restore, before)
        yield own


@contextmanager
def _containerd(folder: Path) -> Iterator[None]:
    """Run the containerd below the engine, which is not killed."""
    socket, state = folder / "containerd.sock", folder / "containerd"
    command = ["containerd", "--address", str(socket), "--root", str(DATA / "containerd"), "--state", str(state)]
    with (DATA / "containerd-log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        until = time.monotonic() + CONTAINERD_S
        while not socket.exists() and time.monotonic() < until:
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


def _give(own: OwnEngine, image: str) -> None:
    """Copy the worker image into the engine from the default engine."""
    if not exists(docker.DockerClient(base_url=own.address), image):
        with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as saved:
            command = ["docker", "--host", own.address, "load", "--quiet"]
            subprocess.run(command, stdin=saved.stdout, check=True, capture_output=True)


def _restore(before: str | None) -> None:
    os.environ.pop(VARIABLE, None)
    if before is not None:
        os.environ[VARIABLE] = before


def _unmount(*folders: Path) -> None:
    """Unmount what a killed engine left mounted in these folders."""
    mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for path in reversed([path for path in mounted if path.startswith(tuple(f"{folder}/" for folder in folders))]):
        subprocess.run(["umount", path], check=False, capture_output=True)
