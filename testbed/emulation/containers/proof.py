"""Proof that a process is the one that the Docker engine means by a number.

An engine counts processes in its own PID namespace. On Docker Desktop, Rancher Desktop, behind a mounted docker.sock
or a socket that ssh forwards, that is another one than this machine's, and the number belongs to a stranger here.
Settings, routes and signals that are meant for a container would then hit the stranger, or the machine itself.
"""

from __future__ import annotations

import os

from testbed.emulation.containers import engine
from testbed.emulation.process import PROC, ProcessIdentity, is_ending
from testbed.resources import SETUP


class ForeignEngineError(engine.EngineError):
    """The engine's process numbers are not this machine's.

    Attributes:
        container: The container's ID.
        pid: The number that the engine gave.
    """

    def __init__(self, container: str, pid: int, found: str) -> None:
        self.container, self.pid = container, pid
        super().__init__(
            f"The Docker engine at {engine.address()} says that process {pid} is in the container {container[:12]}, "
            f"but {found}. The engine runs in another PID namespace (Docker Desktop, Rancher Desktop, "
            "a mounted docker.sock, a socket that ssh forwards), so its containers can't be attached to an emulated "
            "network from here. Nothing was changed. Run the testbed where the engine runs (a development container "
            f"needs --pid=host beside the socket), or unset DOCKER_HOST and let `{SETUP}` start an engine here."
        )


def proven_process(container: str, pid: int) -> ProcessIdentity | None:
    """Return the process `pid`, proven to be of the container with the ID `container`, or None when it has ended.

    The proof is its control group, whose path holds the container's ID of 64 random digits, and which no process
    without capabilities can leave. Its network namespace must not be this process's own.

    Raises:
        ForeignEngineError: This machine's process of that number is not of the container.
    """
    process = ProcessIdentity.of(pid)
    if process is None:
        return None
    try:
        member = container in (process.folder / "cgroup").read_text()
        shared = os.path.samestat((process.folder / "ns/net").stat(), (PROC / "self/ns/net").stat())
    except OSError:
        member, shared = False, True
    if is_ending(pid) or not process.is_running:  # what was read may be of a process that is ending, or the next one
        return None
    if not member:
        raise ForeignEngineError(container, pid, "this machine's process of that number is not in it")
    if shared:
        raise ForeignEngineError(container, pid, "that process uses this machine's own network namespace")
    return process
