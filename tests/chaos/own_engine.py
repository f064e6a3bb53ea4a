"""A Docker engine of the nemesis's own, which may be killed: nobody else's containers are on it.

It makes no bridge and no rules, and keeps its images from one case to the next.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import docker

from testbed.emulation import engine
from testbed.emulation.image import ensure_worker_image, exists
from tests.run.running import REPOSITORY

DATA = REPOSITORY / "build" / "chaos-engine"
VARIABLE = "DOCKER_HOST"


class OwnEngine:
    """An engine whose socket and state are in a folder with a short path: a socket's has 107 characters."""

    def __init__(self, folder: Path) -> None:
        self.address = f"unix://{folder}/docker.sock"
        self._record, self._log = folder / "engine.json", DATA / "log"
        self._options = (
            *("--data-root", str(DATA / "data"), "--exec-root", str(folder / "exec"), "--pidfile", str(folder / "pid")),
            *("--bridge=none", "--iptables=false", "--ip6tables=false"),
        )

    def start(self) -> None:
        """Until it answers. EngineError."""
        engine.start_engine(self.address, self._options, self._record, self._log)

    def kill(self) -> None:
        """As a crash would."""
        if (own := engine.own_engine(self._record)) is not None:
            own.process.send(signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(own.process.pid, 0)

    def stop(self) -> None:
        """With all its containers. EngineError where it does not end."""
        engine.stop_engine(self._record)


@contextmanager
def used() -> Iterator[OwnEngine]:
    """While inside, an engine of its own is the one that runs use; it has the worker image."""
    DATA.mkdir(parents=True, exist_ok=True)
    image = ensure_worker_image(engine.connect(), lambda _: None)
    with tempfile.TemporaryDirectory(prefix="chaos-engine") as folder:
        own, before = OwnEngine(Path(folder)), os.environ.get(VARIABLE)
        own.start()
        try:
            if not exists(docker.DockerClient(base_url=own.address), image):
                with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as saved:
                    command = ["docker", "--host", own.address, "load", "--quiet"]
                    subprocess.run(command, stdin=saved.stdout, check=True, capture_output=True)
            os.environ[VARIABLE] = own.address
            yield own
        finally:
            os.environ.pop(VARIABLE, None)
            if before is not None:
                os.environ[VARIABLE] = before
            own.stop()
