"""Workers as processes in network namespaces of their own, forked from a process that has PyTorch loaded already.

They replace containers where many short runs are measured: sixteen containers take a minute of two cores to load
PyTorch, sixteen forks a second. Their traffic is the same.

    benchmark --a line of JSON for each worker--> fork server --fork--> worker: own namespace, own log, then its program
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import docker

from containers.digits import bake
from testbed.controller.server.member_server import SOCKET
from testbed.emulation.containers import documentation
from testbed.emulation.containers.fleet import ContainerRequest, Fleet
from testbed.emulation.process import ProcessIdentity

_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1


class ForkServer:
    """The process that workers are forked from. A context manager; the workers end with it."""

    def __enter__(self) -> ForkServer:
        self._folder = tempfile.TemporaryDirectory(prefix="testbed-forkserver-")
        bake(self.folder / "digits")
        documentation.link_into(self.folder)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.support.forkserver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C in the terminal reaches this process alone
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    @property
    def folder(self) -> Path:
        """The folder of the datasets and the workers' logs."""
        return Path(self._folder.name)

    def fork(self, arguments: list[str], log: Path) -> int:
        """Fork a worker, and return its pid once it is in its own network namespace."""
        assert self._process.stdin and self._process.stdout
        order = {"arguments": arguments, "log": str(log)}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


class ForkedWorkers(Fleet):
    """A fleet of forked processes instead of containers."""

    def __init__(
        self, client: docker.DockerClient, network: str, image: str, control: Path, server: ForkServer
    ) -> None:
        super().__init__(client, network, image, control)
        self._server = server
        self._pids: dict[str, int] = {}

    def start(self, requests: Iterable[ContainerRequest]) -> Mapping[str, ProcessIdentity]:
        """Fork all workers, and return their processes by name."""
        for request in requests:
            name = request.worker.name
            more = ["--control", f"unix:{self._control / name / SOCKET}", "--data", str(self._server.folder)]
            log = self._log(name)
            self._pids[name] = self._server.fork([*(request.command or ()), *more], log)
        found = {name: ProcessIdentity.of(pid) for name, pid in self._pids.items()}
        return {name: process for name, process in found.items() if process is not None}

    def kill(self, worker: str, sent: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a worker."""
        os.kill(self._pids[worker], sent)

    def logs(self, worker: str) -> bytes:
        """Return a worker's log."""
        return self._log(worker).read_bytes()

    def running(self) -> dict[str, bool]:
        """Return whether each worker still runs."""
        return {name: Path(f"/proc/{pid}").exists() for name, pid in self._pids.items()}

    def deaths(self) -> dict[str, str]:
        """Return nothing: the kernel forgets how a worker ended (see `_serve`)."""
        return {}

    def remove(self) -> None:
        """End all workers."""
        while self._pids:
            _, pid = self._pids.popitem()
            with suppress(ProcessLookupError):  # ended by itself
                os.kill(pid, signal.SIGKILL)

    def _log(self, worker: str) -> Path:
        return self._server.folder / f"{worker}.log"


def _serve() -> None:
    """Fork a worker for each line of standard input; the server's program."""
    import testbed.worker.loop  # noqa: F401 (what the children need, loaded once)

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets children that end
    libc = ctypes.CDLL(None, use_errno=True)
    for line in sys.stdin:
        order = json.loads(line)
        here, there = os.pipe()
        if pid := os.fork():
            os.close(there)
            os.read(here, 1)
            os.close(here)
            print(pid, flush=True)
            continue
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if libc.unshare(_CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "no network namespace; run as root")
        _redirect(order["log"])
        os.write(there, b"+")
        os.close(there)
        sys.argv = ["testbed.worker", *order["arguments"]]
        _work()


def _redirect(log: str) -> None:
    nothing, output = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for old, new in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(old, new)


def _work() -> None:
    from testbed.worker.__main__ import main

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        code = main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve()
