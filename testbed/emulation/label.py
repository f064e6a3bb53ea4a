"""Labels that mark containers and processes as ours and name their network. Clean-up finds them and nothing else.

Containers carry a Docker label. Processes carry an environment variable, which survives an exec and shows in /proc. A
foreign program may clear or overwrite its environment (`env -i`, setproctitle). Therefore programs of this machine that
are started on a network also get a UTS namespace, whose domain name has the marks of their labels; their children are
in that namespace too. Network namespaces and veths need no label: they live exactly as long as the labelled processes
that hold them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from testbed.emulation.network.namespace import CLONE_NEWUTS, call, in_own_thread
from testbed.emulation.process import PF_EXITING, ProcessIdentity, stat_fields
from testbed.telemetry.store import write_json

LABEL = "testbed.network"
ENVIRONMENT = "TESTBED_NETWORK"
#: The label of the processes of one `testbed launch`, which may end before their network does.
LAUNCH = "TESTBED_LAUNCH"

#: One folder for each network that is up: sockets and state. It is usually on a tmpfs, so a reboot leaves nothing;
#: where it is not, the boot ID in an owner's record shows that the record is from before the reboot.
STATE_ROOT = Path("/run/testbed")

OWNER = "owner.json"
#: The folder, in a network's folder, with a file for each launch whose programs may run.
LAUNCHES = "launches"

#: The prefix of a UTS namespace's domain name if its processes are ours.
DOMAIN = "testbed"
#: Stands for a label's value if only its mark is known.
UNKNOWN = "?"

#: A killed process is gone within milliseconds; a process that waits for a broken device may never end.
KILL_DEADLINE_S = 5.0

#: The names of networks and of runs; a run's name begins with a date and a time.
NAME = re.compile(r"[a-z0-9][a-z0-9-]*")

#: The flag of a kernel thread in /proc/PID/stat (include/linux/sched.h).
PF_KTHREAD = 0x200000


@contextmanager
def labelled(network: str) -> Iterator[Path]:
    """Claim the network's name for this process, and label every process started inside the context.

    Processes and files of a killed testbed of the same name are removed first. Yields the network's state folder.

    Raises:
        FileExistsError: A network of this name is up; it is left alone.
    """
    _refuse_taken(network)
    outer = os.environ.get(ENVIRONMENT)
    try:
        _claim(network)
        _clear(network)
        os.environ[ENVIRONMENT] = network
        yield state_folder(network)
    finally:
        # Networks of one process may end in any order. The label of a network that is still up stays. The label of an
        # ended network is not restored: `testbed network clean` would kill programs that this process starts later.
        if os.environ.get(ENVIRONMENT) == network:
            if outer is None or owner(outer) is None:
                del os.environ[ENVIRONMENT]
            else:  # a trial inside a run
                os.environ[ENVIRONMENT] = outer
        remove_state(network)


def owner(network: str) -> ProcessIdentity | None:
    """Return the process that runs a network, or None if it has ended or no network can have the name."""
    if not is_name(network):  # processes choose their label, and it may name any folder
        return None
    found = _running(state_folder(network) / OWNER)
    return None if found is None else found[0]


def record_launch(network: str, launch: str, workers: Iterable[str]) -> None:
    """Record that this process runs a launch's programs in the containers of these workers.

    The record is in a folder that only root may enter, while a program may change its own label.
    """
    folder = state_folder(network) / LAUNCHES
    folder.mkdir(mode=0o700, exist_ok=True)
    write_json(folder / f"{launch}.json", {**_own_record(), "workers": list(workers)})


def forget_launch(network: str, launch: str) -> None:
    """Remove the record of a launch whose programs have ended."""
    (state_folder(network) / LAUNCHES / f"{launch}.json").unlink(missing_ok=True)


def launches(network: str) -> dict[str, list[str]]:
    """Return the recorded launches of a network whose process still runs, each with its workers."""
    found = {file.stem: _running(file) for file in _launch_records(network)}
    return {launch: list(each[1].get("workers", ())) for launch, each in found.items() if each is not None}


def end_crashed_launches(network: str) -> list[int]:
    """End the programs of a network's launches whose process has ended, and return the ids of the ended processes."""
    ended = list[int]()
    for file in _launch_records(network):
        if _running(file) is None:
            ended += kill_processes(file.stem, LAUNCH)
            file.unlink(missing_ok=True)
    return ended


def _launch_records(network: str) -> list[Path]:
    return sorted((state_folder(network) / LAUNCHES).glob("*.json")) if is_name(network) else []


def _own_record() -> dict[str, Any]:
    own = ProcessIdentity.own()
    return {"pid": own.pid, "started": own.start_ticks, "boot": own.boot}


def _running(file: Path) -> tuple[ProcessIdentity, dict[str, Any]] | None:
    """Return the process that a record names, and the whole record; None if the process has ended."""
    try:
        record = json.loads(file.read_text())
        process = ProcessIdentity(int(record["pid"]), int(record["started"]), str(record.get("boot", "")))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # no record, or a crash left a broken one
    return (process, record) if process.is_running else None


def _claim(network: str) -> None:
    """Make this process the network's owner. Of several processes that try at once, one succeeds."""
    with _locked():
        _refuse_taken(network)
        write_json(state_folder(network) / OWNER, _own_record())


def _refuse_taken(network: str) -> None:
    if (running := owner(network)) is not None:
        remedy = f"`testbed network clean --name {network}` takes it down"
        raise FileExistsError(f"a network named {network} is already up (process {running.pid}); {remedy}")


def _clear(network: str) -> None:
    """Remove what a killed testbed left of a network that this process owns now."""
    kill_processes(network)
    for left in state_folder(network).iterdir():
        if left.name != OWNER:
            shutil.rmtree(left) if left.is_dir() else left.unlink()


@contextmanager
def _locked() -> Iterator[None]:
    """Keep other processes from making or removing a network's folder. The lock of a killed process is released."""
    STATE_ROOT.mkdir(parents=True, exist_ok=True)
    with (STATE_ROOT / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_name(network: str) -> bool:
    """Return whether a network may have this name, which is also the name of a folder."""
    return NAME.fullmatch(network) is not None


def networks() -> list[str]:
    """Return the networks that are up, or of which a killed testbed left a folder."""
    folder = STATE_ROOT / "networks"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def state_folder(network: str) -> Path:
    """Return the folder with a network's sockets and state while it is up."""
    return STATE_ROOT / "networks" / network


def control_folder(network: str) -> Path:
    """Return the folder with a subfolder for each worker, and the files by which workers resolve names."""
    return state_folder(network) / "control"


def processes(wanted: str | None = None, label: str | None = None) -> Iterator[tuple[int, str]]:
    """Yield (pid, label value) for each process with a label of ours, in its environment or through its UTS namespace.

    `wanted` is the network or launch to look for, None for all; `label` is the label to look at, None for that of
    networks. Processes in our containers are included, and those of a testbed that runs in a container are not.
    UNKNOWN stands for a value of which only the mark is known.
    """
    pids = _others()
    marks = _marks(pids)
    for pid in pids:
        carried = _carried(pid, label) or _marked(marks.get(pid, ()), wanted, label)
        if carried is not None and wanted in (None, carried) and _is_here(pid):
            yield pid, carried


def _is_here(pid: int) -> bool:
    """Return whether a process belongs to a testbed with this state folder: one in a container has networks of its own.

    Our containers have a part of the folder mounted at its path. A switch's daemons have a /run of their own, in this
    PID namespace.
    """
    with suppress(OSError):
        return Path(f"/proc/{pid}/root{STATE_ROOT}").stat().st_dev == STATE_ROOT.stat().st_dev
    with suppress(OSError):
        return Path(f"/proc/{pid}/ns/pid").stat().st_ino == Path("/proc/self/ns/pid").stat().st_ino
    return False


def leave() -> None:
    """Detach this process from the network on which it was started. Call it before other threads start."""
    if Path("/proc/sys/kernel/domainname").read_text().startswith(f"{DOMAIN}."):
        call("unshare", CLONE_NEWUTS)
        call("setdomainname", b"", 0)


def domain_name(labels: Mapping[str, str]) -> str:
    """Return the domain name of a UTS namespace for processes with these labels.

    The kernel takes 64 characters, fewer than the names of a network and a launch may have, so the name has hashes.
    """
    return ".".join([DOMAIN, *(_mark(label, value) for label, value in labels.items())])


def marked(command: Sequence[str], labels: Mapping[str, str]) -> list[str]:
    """Return a command that runs `command` in a UTS namespace with these labels' marks and the same host name."""
    mark = 'echo "$0" > /proc/sys/kernel/domainname; exec "$@"'
    return ["unshare", "--uts", "sh", "-c", mark, domain_name(labels), *command]


def _mark(label: str, value: str) -> str:
    return _kind(label) + hashlib.sha256(value.encode()).hexdigest()[:16]


def _kind(label: str) -> str:
    """Return the prefix of all marks of one label."""
    return hashlib.sha256(label.encode()).hexdigest()[:8]


def _marked(marks: Sequence[str], wanted: str | None, label: str | None) -> str | None:
    """Return the value whose hash is among a process's marks; None if no mark is of this label.

    Hashes can be compared only with known values: `wanted`, and the networks' names. Any other value is UNKNOWN.
    """
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
    # The name can be read only from inside the namespace, so a thread enters it and ends afterwards.
    names = in_own_thread(lambda: _domain_names(members))
    ours = {inode: name.split(".")[1:] for inode, name in names.items() if name.startswith(f"{DOMAIN}.")}
    return {pid: marks for inode, marks in ours.items() for pid in members[inode]}


def _domain_names(members: Mapping[int, Sequence[int]]) -> dict[int, str]:
    """Return the domain names of UTS namespaces, which this thread enters. `members` has the processes in each."""
    names = {}
    for inode, pids in members.items():
        for pid in pids:  # the first may have ended
            with suppress(OSError), Path(f"/proc/{pid}/ns/uts").open("rb") as file:
                if os.fstat(file.fileno()).st_ino == inode:
                    call("setns", file.fileno(), CLONE_NEWUTS)
                    names[inode] = Path("/proc/sys/kernel/domainname").read_text(errors="replace").strip()
                    break
    return names


def _others() -> list[int]:
    """Return the ids of all processes but this one."""
    named = (folder.name for folder in Path("/proc").iterdir())
    return [int(name) for name in named if name.isdecimal() and int(name) != os.getpid()]


def _carried(pid: int, label: str | None) -> str | None:
    """Return the value of a label in a process's environment (None means the network's label), or None without one."""
    wanted = (label or ENVIRONMENT).encode()
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None  # it ended, or is a kernel thread
    values = (value for name, _, value in (each.partition(b"=") for each in variables) if name == wanted)
    return next((value.decode(errors="replace") for value in values), None)


def kill_processes(wanted: str | None = None, label: str | None = None) -> list[int]:
    """Kill the processes whose label has the value `wanted` (None: any) until none is left; return their ids.

    Gives up after KILL_DEADLINE_S.
    """
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


def orphans_of(first: ProcessIdentity, since_ticks: int, network: str, launch: str) -> list[ProcessIdentity]:
    """Return the processes below a container's `first` process that started at `since_ticks` or later.

    Processes of other recorded launches of the network are excluded.
    """
    found = {pid: fields for pid in _others() if (fields := stat_fields(pid)) is not None and fields[0] not in "ZX"}
    children = defaultdict[int, list[int]](list)
    for pid, fields in found.items():
        children[int(fields[1])].append(pid)
    # Read after the processes: a launch is recorded before it starts one.
    others = launches(network).keys() - {launch}
    theirs = {pid for pid, carried in processes(label=LAUNCH) if carried in others}
    below, orphans = list(children[first.pid]) if first.is_running else [], []
    while below:
        pid = below.pop()
        if pid not in theirs:
            below += children[pid]
            orphans.append(ProcessIdentity(pid, int(found[pid][19])))
    return [orphan for orphan in orphans if orphan.start_ticks >= since_ticks]


def is_loading(pid: int) -> bool:
    """Return whether a process's program is still being loaded.

    The kernel shows no environment of such a process yet, though its parent has been told that it runs.
    """
    try:
        if Path(f"/proc/{pid}/environ").read_bytes():
            return False
        fields = stat_fields(pid)
    except OSError:
        return False  # the process ended, or may not be inspected
    if fields is None:
        return False
    state, flags, environment_ends = fields[0], int(fields[6]), int(fields[48])
    return not environment_ends and state not in "ZX" and not flags & (PF_EXITING | PF_KTHREAD)


def _kill(pid: int, wanted: str | None, label: str | None) -> None:
    descriptor = os.pidfd_open(pid)  # refers to this process even if its number is reused
    try:
        carried = _carried(pid, label) or _marked(_marks([pid]).get(pid, ()), wanted, label)
        if carried is not None and wanted in (None, carried):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    finally:
        os.close(descriptor)


def remove_state(network: str | None = None) -> None:
    """Remove the folder of one network, or of all networks, unless another process owns the name by now.

    Names that are no entries of the networks' folder are passed over: a process may have any label, such as `/home`.
    """
    with _locked():
        for name in networks():
            if network in (None, name) and owner(name) in (None, ProcessIdentity.own()):
                shutil.rmtree(state_folder(name), ignore_errors=True)
