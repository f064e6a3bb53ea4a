"""What marks a thing as ours, and of which network: so that clean-up can find it, and touches nothing else.

Containers carry it as a Docker label. Processes carry it in their environment, where it survives an exec and shows
in /proc. A program that is not ours may clear or overwrite that (`env -i`, setproctitle). So those of this machine that
are started on a network get a UTS namespace, whose domain name has the marks of what they belong to, and all that they
start is in that namespace too. Network namespaces and veths need none: they live exactly as long as the labelled
processes that hold them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from testbed.emulation.network.namespace import CLONE_NEWUTS, call
from testbed.emulation.process import PF_EXITING, ProcessIdentity, stat_fields
from testbed.telemetry.store import write_json

LABEL = "testbed.network"
ENVIRONMENT = "TESTBED_NETWORK"
#: What the processes of one `testbed launch` carry beside it, which may end before their network does.
LAUNCH = "TESTBED_LAUNCH"

#: One folder a network that is up: sockets and state. On a tmpfs as a rule, so a reboot leaves none; where it is not,
#: the boot in an owner's record tells that it is of before.
STATE_ROOT = Path("/run/testbed")

OWNER = "owner.json"

#: What a UTS namespace's domain name begins with where its processes are ours.
DOMAIN = "testbed"
#: In the place of a name of which only a mark is there.
UNKNOWN = "?"

#: A killed process is gone within milliseconds; one that waits for a broken device may never be.
KILL_DEADLINE_S = 5.0

#: The names of networks, and of runs, which begin with a date and a time.
NAME = re.compile(r"[a-z0-9][a-z0-9-]*")

#: The flag of a thread of the kernel's in /proc/PID/stat (include/linux/sched.h).
PF_KTHREAD = 0x200000


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
        remedy = f"`testbed clean --name {network}` takes it down"
        raise FileExistsError(f"a network named {network} is already up (process {running.pid}); {remedy}")


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


def is_name(network: str) -> bool:
    """Return whether a network may have this name, which is that of a folder too."""
    return NAME.fullmatch(network) is not None


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
    """(pid, what it carries) of each process with a label of ours, in its environment or by its UTS namespace; of one
    network or launch, or of all. Those in containers are among them. UNKNOWN stands for a value of which only the mark
    is known."""
    pids = _others()
    marks = _marks(pids)
    for pid in pids:
        carried = _carried(pid, label)
        if carried is None:
            carried = _marked(marks.get(pid, ()), wanted, label)
        if carried is not None and wanted in (None, carried):
            yield pid, carried


def leave() -> None:
    """Have this process belong to no network on which it was started. Called before it has other threads."""
    if Path("/proc/sys/kernel/domainname").read_text().startswith(f"{DOMAIN}."):
        call("unshare", CLONE_NEWUTS)
        call("setdomainname", b"", 0)


def domain_name(labels: Mapping[str, str]) -> str:
    """Return the domain name of a UTS namespace for processes with these labels. The kernel takes 64 characters, fewer
    than a network's and a launch's names have."""
    return ".".join([DOMAIN, *(_mark(label, value) for label, value in labels.items())])


def marked(command: Sequence[str], labels: Mapping[str, str]) -> list[str]:
    """Return a command that runs `command` in a UTS namespace with these labels' marks, and the same host name."""
    mark = 'echo "$0" > /proc/sys/kernel/domainname; exec "$@"'
    return ["unshare", "--uts", "sh", "-c", mark, domain_name(labels), *command]


def _mark(label: str, value: str) -> str:
    return _kind(label) + hashlib.sha256(value.encode()).hexdigest()[:16]


def _kind(label: str) -> str:
    """What the marks of one label begin with."""
    return hashlib.sha256(label.encode()).hexdigest()[:8]


def _marked(marks: Sequence[str], wanted: str | None, label: str | None) -> str | None:
    """Return what a process with these marks carries under a label: `wanted` or a network of which there is a folder,
    or UNKNOWN for any other value."""
    name = label or ENVIRONMENT
    if not any(mark.startswith(_kind(name)) for mark in marks):
        return None
    known = [*([] if wanted is None else [wanted]), *networks()]
    return next((value for value in known if _mark(name, value) in marks), UNKNOWN)


def _marks(pids: Iterable[int]) -> dict[int, Sequence[str]]:
    """Return the marks of the processes that are in UTS namespaces of ours."""
    own, members = Path("/proc/self/ns/uts").stat().st_ino, defaultdict[int, list[int]](list)
    for pid in pids:
        with suppress(OSError):  # it ended
            if (inode := Path(f"/proc/{pid}/ns/uts").stat().st_ino) != own:
                members[inode].append(pid)
    if not members:
        return {}
    # Only one that is in the namespace can ask for its name. A thread may go there, and ends afterwards.
    names: dict[int, str] = {}
    asking = threading.Thread(target=_ask_names, args=(members, names))
    asking.start()
    asking.join()
    ours = {inode: name.split(".")[1:] for inode, name in names.items() if name.startswith(f"{DOMAIN}.")}
    return {pid: marks for inode, marks in ours.items() for pid in members[inode]}


def _ask_names(members: Mapping[int, Sequence[int]], names: dict[int, str]) -> None:
    for inode, pids in members.items():
        for pid in pids:  # the first may have ended
            with suppress(OSError), Path(f"/proc/{pid}/ns/uts").open("rb") as file:
                if os.fstat(file.fileno()).st_ino == inode:
                    call("setns", file.fileno(), CLONE_NEWUTS)
                    names[inode] = Path("/proc/sys/kernel/domainname").read_text().strip()
                    break


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


def orphans_of(first: ProcessIdentity, since_ticks: int, launch: str) -> list[ProcessIdentity]:
    """Return the processes below a container's `first` one that started at `since_ticks` or later, without those of
    other launches."""
    found = {pid: fields for pid in _others() if (fields := stat_fields(pid)) is not None and fields[0] not in "ZX"}
    children = defaultdict[int, list[int]](list)
    for pid, fields in found.items():
        children[int(fields[1])].append(pid)
    theirs = {pid for pid, carried in processes(label=LAUNCH) if carried != launch}
    below, orphans = list(children[first.pid]) if first.is_running else [], []
    while below:
        pid = below.pop()
        if pid not in theirs:
            below += children[pid]
            orphans.append(ProcessIdentity(pid, int(found[pid][19])))
    return [orphan for orphan in orphans if orphan.start_ticks >= since_ticks]


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
        carried = _carried(pid, label) or _marked(_marks([pid]).get(pid, ()), wanted, label)
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
