"""Members as processes in the network's hosts instead of containers; and members in containers that keep records.

    run --forkserver, with PyTorch loaded--fork--> member: own network namespace, own log, then its program's main

A container takes 3 s of a processor to start, most of them for PyTorch; a fork takes almost nothing.
"""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import docker

from testbed.controller.server.member_server import SOCKET
from testbed.emulation.containers.fleet import ContainerRequest, Fleet
from testbed.emulation.process import ProcessIdentity
from tests.chaos import planted

_CLONE_NEWNET = 0x40000000
MEMBER = Path(__file__).with_name("member.py")
RECORDING = "tests.chaos.member"
#: The same as in member.py, which can't be imported here because it loads PyTorch.
RECORD = "CHAOS "
#: The lines quoted of a dead member's log, as of a container's; records are left out.
QUOTED_LINES = 10


class RecordingFleet(Fleet):
    """A fleet of containers whose program keeps records."""

    def start(self, requests: Iterable[ContainerRequest]) -> Mapping[str, ProcessIdentity]:
        source = MEMBER.read_text()
        return super().start(
            replace(request, command=("-c", source, *request.command), entrypoint=("python3",)) for request in requests
        )


class ProcessFleet(Fleet):
    """A fleet of processes instead of containers, each of which ends and is restarted by itself.

    They run the `main` of the module `program`, with `options` beside the arguments of a worker.
    """

    def __init__(
        self,
        client: docker.DockerClient,
        network: str,
        control: Path,
        logs: Path,
        program: str,
        options: Sequence[str] = (),
        bug: planted.Bug | None = None,
    ) -> None:
        super().__init__(client, network, "", control)
        self._logs = logs
        self._program = program
        self._options = options
        self._bug = bug
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([program, "testbed.worker.loop"])
        self._processes: dict[str, Any] = {}

    def image_record(self) -> dict[str, Any]:
        return {}

    def start(self, requests: Iterable[ContainerRequest]) -> Mapping[str, ProcessIdentity]:
        return {request.worker.name: self._fork(request) for request in requests}

    def _fork(self, request: ContainerRequest) -> ProcessIdentity:
        name = request.worker.name
        control = self._control / name
        control.mkdir(exist_ok=True)
        arguments = [*request.command, *self._options, "--control", f"unix:{control / SOCKET}"]
        heard, told = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=run_member, args=(name, self._program, arguments, self._log(name), told, self._bug)
        )
        process.start()
        told.close()
        with heard:
            heard.recv()  # it is in its namespace
        self._processes[name] = process
        identity = ProcessIdentity.of(process.pid or 0)
        assert identity is not None, self.death(name)
        return identity

    def kill(self, worker: str, sent: signal.Signals = signal.SIGKILL) -> None:
        if self._processes[worker].is_alive():
            os.kill(self._processes[worker].pid, sent)

    def restart(self, request: ContainerRequest) -> ProcessIdentity:
        return self._fork(request)

    def running(self) -> dict[str, bool]:
        return {name: process.is_alive() for name, process in self._processes.items()}

    def exit_code(self, worker: str) -> int:
        return int(self._processes[worker].exitcode)

    def death(self, worker: str) -> str:
        said = self._log(worker).read_text(errors="replace").splitlines()
        lines = [line for line in said if not line.startswith(RECORD)][-QUOTED_LINES:]
        return "\n".join([f"with exit code {self.exit_code(worker)}; its log ends with:", *lines])

    def logs(self, worker: str) -> bytes:
        """Return nothing: the log is in the run's directory already."""
        return b""

    def remove(self) -> None:
        while self._processes:
            _, process = self._processes.popitem()
            process.kill()
            process.join()

    def _log(self, worker: str) -> Path:
        return self._logs / f"{worker}.log"


def run_member(
    name: str, program: str, arguments: list[str], log: Path, told: Connection, bug: planted.Bug | None
) -> None:
    """Run a forked member, from its namespace to its exit."""
    main = importlib.import_module(program).main
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setsid()  # Ctrl-C in the terminal is not for containers either
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "no network namespace; run as root")
    Path("/proc/self/comm").write_text(name)  # so that it is found
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(output, number)
    if bug is not None:
        bug.plant_in_member()
    told.send(True)
    sys.argv = ["testbed.worker", *arguments]
    sys.exit(main())
