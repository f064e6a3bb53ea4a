"""Proof that a process id from the Docker engine means the same process on this machine.

An engine reports process ids of its own PID namespace. With Docker Desktop, Rancher Desktop, a mounted docker.sock or a
socket that ssh forwards, that is not this machine's namespace, and the same number belongs to an unrelated process
here. Settings, routes and signals meant for a container would then hit that process, or the machine itself.
"""

from __future__ import annotations

import os

from testbed.emulation.containers import engine
from testbed.emulation.process import PROC, ProcessIdentity, is_ending
from testbed.resources import SETUP


class ForeignEngineError(engine.EngineError):
    """The engine's process ids are not this machine's.

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
    """Return the process `pid` after proving that it is in the container with this ID; None if it has ended.

    The proof is its control group: its path holds the container's ID of 64 random digits, and no process without
    capabilities can leave it. In addition, its network namespace must not be this process's own.

    Raises:
        ForeignEngineError: This machine's process of that number is not in the container.
    """
    process = ProcessIdentity.of(pid)
    if process is None:
        return None
    try:
        member = container in (process.folder / "cgroup").read_text()
        shared = os.path.samestat((process.folder / "ns/net").stat(), (PROC / "self/ns/net").stat())
    except OSError:
        member, shared = False, True
    if (
        is_ending(pid) or not process.is_running
    ):  # the files may have been those of an ending process or of its successor
        return None
    if not member:
        raise ForeignEngineError(container, pid, "this machine's process of that number is not in it")
    if shared:
        raise ForeignEngineError(container, pid, "that process uses this machine's own network namespace")
    return process
