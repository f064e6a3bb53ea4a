"""What marks a thing as ours, and of which network: so that clean-up can find it, and touches nothing else.

Containers carry it as a Docker label. Processes carry it in their environment, where it survives an exec and shows
in /proc. Namespaces and veths need none: they live exactly as long as the labelled processes that hold them.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from testbed.emulation.process import ProcessIdentity
from testbed.telemetry.store import write_json

LABEL = "testbed.network"
ENVIRONMENT = "TESTBED_NETWORK"
#: What the processes of one `testbed launch` carry beside it, which may end before their network does.
LAUNCH = "TESTBED_LAUNCH"

#: One folder a network that is up: sockets and state. On a tmpfs as a rule, so a reboot leaves none; where it is not,
#: the boot in an owner's record tells that it is of before.
STATE_ROOT = Path("/run/testbed")

OWNER = "owner.json"

#: A killed process is gone within milliseconds; one that waits for a broken device may never be.
KILL_DEADLINE_S = 5.0

#: Flags of a process in /proc/PID/stat (include/linux/sched.h): it is ending, it is a thread of the kernel's.
PF_EXITING, PF_KTHREAD = 0x4, 0x200000


@contextmanager
def labelled(network: str) -> Iterator[Path]:
    """While inside, the name is this process's on this machine, and every process started carries it as a label; yields
    the network's state folder.

    Raises FileExistsError when a network of this name is up, which is left as it is. Processes and files of one that
    was killed are taken away.
    """
    _refuse_taken(network)
    outer = os.environ.get(ENVIRONMENT)
    try:
        _claim(network)
        _clear(network)
        os.environ[ENVIRONMENT] = network
        yield state_folder(network)
    finally:
        if outer is None:
            os.environ.pop(ENVIRONMENT, None)
        else:  # a trial inside a run
            os.environ[ENVIRONMENT] = outer
        remove_state(network)


def owner(network: str) -> ProcessIdentity | None:
    """The process that runs a network, if it still does."""
    try:
        record = json.loads((state_folder(network) / OWNER).read_text())
        process = ProcessIdentity(int(record["pid"]), int(record["started"]), str(record.get("boot", "")))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # none, or what a crash left is no record
    return process if process.is_running else None


def _claim(network: str) -> None:
    """Make this process the network's owner. Of several that want to be at once, one is."""
    with _locked():
        _refuse_taken(network)
        own = ProcessIdentity.of(os.getpid())
        assert own is not None
        write_json(state_folder(network) / OWNER, {"pid": own.pid, "started": own.start_ticks, "boot": own.boot})


def _refuse_taken(network: str) -> None:
    if (running := owner(network)) is not None:
        raise FileExistsError(f"a network named {network} is up (process {running.pid}); `testbed clean` takes it down")


def _clear(network: str) -> None:
    """Take away what a killed testbed left of a network that is this process's now."""
    kill_processes(network)
    for left in state_folder(network).iterdir():
        if left.name != OWNER:
            shutil.rmtree(left) if left.is_dir() else left.unlink()


@contextmanager
def _locked() -> Iterator[None]:
    """While inside, no other process makes or removes a network's folder. A killed one holds nothing up."""
    STATE_ROOT.mkdir(parents=True, exist_ok=True)
    with (STATE_ROOT / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def networks() -> list[str]:
    """The networks that are up, or that a killed testbed left a folder of."""
    folder = STATE_ROOT / "networks"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def state_folder(network: str) -> Path:
    """Where a network keeps its sockets while it is up."""
    return STATE_ROOT / "networks" / network


def control_folder(network: str) -> Path:
    """Where a network has a folder for each worker, and the files by which workers resolve names."""
    return state_folder(network) / "control"


def processes(wanted: str | None = None, label: str | None = None) -> Iterator[tuple[int, str]]:
    """(pid, what it carries) of each process with a label of ours in its environment; of one network or launch, or of
    all. Those in containers are among them."""
    for pid in _others():
        carried = _carried(pid, label)
        if carried is not None and wanted in (None, carried):
            yield pid, carried


def _others() -> list[int]:
    """The processes that there are, without this one."""
    named = (folder.name for folder in Path("/proc").iterdir())
    return [int(name) for name in named if name.isdecimal() and int(name) != os.getpid()]


def _carried(pid: int, label: str | None) -> str | None:
    """What a process carries under a label, a network's where none is named."""
    wanted = (label or ENVIRONMENT).encode()
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None  # it ended, or is a kernel thread
    values = (value for name, _, value in (each.partition(b"=") for each in variables) if name == wanted)
    return next((value.decode(errors="replace") for value in values), None)


def kill_processes(wanted: str | None = None, label: str | None = None) -> list[int]:
    """End every process that carries the label, by id, until none is left; the ids of those that were there."""
    ended: set[int] = set()
    deadline = time.monotonic() + KILL_DEADLINE_S
    while time.monotonic() < deadline:
        found = {pid for pid, _ in processes(wanted, label)}
        if not found and not any(map(is_loading, _others())):
            break
        for pid in found - ended:
            with suppress(ProcessLookupError):
                _kill(pid, wanted, label)
        ended |= found
        time.sleep(0.005)
    return sorted(ended)


def is_loading(pid: int) -> bool:
    """Whether the program of a process is being loaded: the kernel shows no environment of it yet, though who started
    it has been told that it runs."""
    try:
        if Path(f"/proc/{pid}/environ").read_bytes():
            return False
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False  # it ended, or is none that may be looked into
    state, flags, environment_ends = fields[0], int(fields[6]), int(fields[48])
    return not environment_ends and state not in "ZX" and not flags & (PF_EXITING | PF_KTHREAD)


def _kill(pid: int, wanted: str | None, label: str | None) -> None:
    descriptor = os.pidfd_open(pid)  # stays with the process, where its number may be given to another one
    try:
        carried = _carried(pid, label)
        if carried is not None and wanted in (None, carried):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    finally:
        os.close(descriptor)


def remove_state(network: str | None = None) -> None:
    """Remove the folder of one network, or those of all, unless it is another process's, which was quicker to claim the
    name."""
    with _locked():
        for name in networks() if network is None else [network]:
            if owner(name) in (None, ProcessIdentity.of(os.getpid())):
                shutil.rmtree(state_folder(name), ignore_errors=True)
