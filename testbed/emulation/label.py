"""What marks a thing as ours, and of which network: so that clean-up can find it, and touches nothing else.

Containers carry it as a Docker label. Processes carry it in their environment, where it survives an exec and shows
in /proc. Namespaces and veths need none: they live exactly as long as the labelled processes that hold them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from testbed.emulation.process import start_ticks

LABEL = "testbed.network"
ENVIRONMENT = "TESTBED_NETWORK"

#: One folder a network that is up: sockets and state. On a tmpfs, so a reboot leaves none.
STATE_ROOT = Path("/run/testbed")

#: A killed process is gone within milliseconds; one that waits for a broken device may never be.
KILL_DEADLINE_S = 5.0


@contextmanager
def labelled(network: str) -> Iterator[Path]:
    """While inside, every process started carries the network's label; yields the network's state folder.

    Raises FileExistsError when a network of this name is up. A folder that a killed testbed left is taken over.
    """
    folder = state_folder(network)
    if (running := owner(network)) is not None:
        raise FileExistsError(f"a network named {network} is up (process {running}); `testbed clean` takes it down")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "owner.json").write_text(json.dumps({"pid": os.getpid(), "started": start_ticks(os.getpid())}))
    outer = os.environ.get(ENVIRONMENT)
    os.environ[ENVIRONMENT] = network
    try:
        yield folder
    finally:
        if outer is None:
            del os.environ[ENVIRONMENT]
        else:  # a trial inside a run
            os.environ[ENVIRONMENT] = outer
        remove_state(network)


def owner(network: str) -> int | None:
    """The process that runs a network, if it still does."""
    try:
        record = json.loads((state_folder(network) / "owner.json").read_text())
        pid, started = int(record["pid"]), int(record["started"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # none, or what a crash left is no record
    return pid if start_ticks(pid) == started else None


def networks() -> list[str]:
    """The networks that are up, or that a killed testbed left a folder of."""
    folder = STATE_ROOT / "networks"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def state_folder(network: str) -> Path:
    """Where a network keeps its sockets while it is up."""
    return STATE_ROOT / "networks" / network


def processes(network: str | None = None) -> Iterator[tuple[int, str]]:
    """(pid, network) of each process that carries our label; of one network, or of all."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it ended, or is a kernel thread
        for variable in variables:
            name, _, value = variable.partition(b"=")
            if name == ENVIRONMENT.encode() and network in (None, value.decode(errors="replace")):
                yield int(folder.name), value.decode(errors="replace")


def kill_processes(network: str | None = None) -> list[int]:
    """End every process that carries the label, by id, until none is left; the ids of those that were there."""
    ended: set[int] = set()
    deadline = time.monotonic() + KILL_DEADLINE_S
    while (found := {pid for pid, _ in processes(network)}) and time.monotonic() < deadline:
        for pid in found - ended:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ended |= found
        time.sleep(0.005)
    return sorted(ended)


def remove_state(network: str | None = None) -> None:
    """Remove the folders of one network, or of all."""
    shutil.rmtree(state_folder(network) if network else STATE_ROOT / "networks", ignore_errors=True)
