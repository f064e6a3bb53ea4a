"""The Docker engine: uses one that answers, or starts one, and records which it was.

An engine that was already running belongs to somebody else: it is used and never stopped. An engine that was started
here is recorded with its process id and start time, and only the process that matches both may be stopped.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import platform
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, DockerException, ImageNotFound, NotFound, StreamParseError
from docker.utils.config import load_general_config
from docker.utils.proxy import ProxyConfig
from requests import PreparedRequest, Response
from requests.exceptions import RequestException
from urllib3.exceptions import HTTPError

from testbed.emulation.errors import EmulationError, run_program
from testbed.emulation.label import STATE_ROOT
from testbed.emulation.process import PROC, ProcessIdentity, how_it_ended, is_ending, last_lines
from testbed.resources import SETUP
from testbed.telemetry.store import write_json

DEFAULT_ADDRESS = "unix:///var/run/docker.sock"
RECORD = STATE_ROOT / "engine.json"
LOG = Path("/var/log/testbed-engine.log")

#: An engine with an empty data root answers after 2 s on 2 cores, one with hundreds of images after 10 s.
START_TIMEOUT_S = 90.0
#: An engine gives its containers 10 s to end, then ends itself.
STOP_TIMEOUT_S = 60.0
#: Where control groups are, and the group of a container's own processes, beside those of an engine in it.
CONTROL_GROUPS = Path("/sys/fs/cgroup")
OWN_GROUP = "init"
#: The number of log lines quoted when an engine failed; lines of attempts to connect to `containerd` are left out.
LOG_TAIL_LINES = 15
CONNECTING = " module=grpc"
#: Where `dockerd` writes its process id, and that of the `containerd` which it starts.
PID_FILES = {"dockerd": Path("/var/run/docker.pid"), "containerd": Path("/var/run/docker/containerd/containerd.pid")}
#: The end of the log when `dockerd` gave up waiting for its `containerd`, which has 15 s to start.
CONTAINERD_LATE = "timeout waiting for containerd to start"

log = logging.getLogger(__name__)


#: The variable with the folder of a Docker client's configuration.
CONFIGURATION = "DOCKER_CONFIG"
_CONFIGURING = threading.Lock()
#: The folder of a client configuration that comes with the package, since a full disk has no room for a new one, and
#: Docker's client only reads it. A client without any credentials reads the user's again before each build, so the
#: configuration has empty credentials for a registry that does not exist.
NO_CREDENTIALS = Path(__file__).with_name("client")

#: For manifests: the parts of the user's Docker client configuration that are used.
CLIENT_RECORD = {
    "credentials": "none",
    "worker_proxies": "none",
    "build_proxies": "the client configuration's, for Dockerfiles alone",
}


#: A peer's credentials on a Unix socket: its process id in this PID namespace (0 if it has none), user and group.
PEER = struct.Struct("3i")
#: The number of running containers whose processes `check_namespace` looks at.
MOST_ASKED = 8
#: The engine's name for its operating system where it runs in the virtual machine of Docker Desktop.
DESKTOP = "Docker Desktop"


class EngineError(EmulationError):
    """There is no working engine; the text says why and what to do."""


class EngineGoneError(EngineError):
    """The engine did not answer a request, or no longer listens. `why` is the client's reason."""

    def __init__(self, error: object) -> None:
        self.why = str(error)
        super().__init__(
            f"The Docker engine at {address()} no longer answers ({error}). Check that it runs (`docker info`; "
            f"`{SETUP}` starts one), then try again."
        )


class ForeignEngineError(EngineError):
    """The engine's process ids are not this machine's.

    An engine reports process ids of its own PID namespace. With Docker Desktop, Rancher Desktop, a mounted docker.sock
    or a socket that ssh forwards, that is not this machine's namespace, and the same number belongs to an unrelated
    process here. Settings, routes and signals meant for a container would then hit that process, or the machine itself.

    Attributes:
        container: The ID of the container whose process showed it; None if the engine itself did.
        pid: The number that the engine gave; None without a container.
    """

    def __init__(self, container: str | None, pid: int | None, found: str) -> None:
        self.container, self.pid = container, pid
        if container is not None:
            found = f"says that process {pid} is in the container {container[:12]}, but {found}"
        super().__init__(
            f"The Docker engine at {address()} {found}. The engine runs in another PID namespace (Docker Desktop, "
            "Rancher Desktop, a mounted docker.sock, a socket that ssh forwards), so its containers can't be attached "
            "to an emulated network from here. Nothing was changed. Run the testbed where the engine runs (a "
            "development container needs --pid=host beside the socket), or unset DOCKER_HOST and let "
            f"`{SETUP}` start an engine here."
        )


#: The errors that a client raises when the engine refuses, is gone, or goes away in the middle of an answer.
ENGINE_ERRORS = (EngineError, DockerException, RequestException, StreamParseError, HTTPError)


class _Api(docker.APIClient):
    """Docker's API, in which every request ends in an answer, a refusal (APIError) or EngineGoneError."""

    def send(self, request: PreparedRequest, **options: Any) -> Response:
        try:
            return super().send(request, **options)
        except RequestException as error:
            raise EngineGoneError(error) from error


class _Client(docker.DockerClient):
    """Docker's client over `_Api`; Docker's own constructor would create another API class."""

    def __init__(self, **options: Any) -> None:
        self.api = _Api(**options)


def explained(error: BaseException) -> EngineError:
    """Turn an error of ENGINE_ERRORS into an EngineError that says what to do."""
    if isinstance(error, EngineError):
        return error
    if isinstance(error, ImageNotFound):
        what = f"An image was removed from the Docker engine at {address()} meanwhile"
        return EngineError(
            f"{what}: {error.explanation or error}. Call the command again: it builds the image, or says how to get it"
        )
    if isinstance(error, APIError):
        return EngineError(f"The Docker engine at {address()} refused a request: {error.explanation or error}")
    if isinstance(error, DockerException):
        return EngineError(f"A request to the Docker engine at {address()} failed in Docker's client: {error}")
    return EngineGoneError(error)


@dataclass(frozen=True, slots=True)
class OwnEngine:
    """An engine that was started here, identified beyond its process id."""

    process: ProcessIdentity
    address: str

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> OwnEngine:
        """Read a record of `to_json`, or of an earlier version without a boot ID.

        Raises:
            KeyError, TypeError, ValueError: It is not an engine's record.
        """
        process = ProcessIdentity(int(value["pid"]), int(value["start_ticks"]), str(value.get("boot", "")))
        return cls(process, str(value["address"]))

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain values, which `from_json` reads in another process."""
        return {**asdict(self.process), "address": self.address}


def address() -> str:
    """Return the engine's address: DOCKER_HOST, as for every Docker client, or the default socket."""
    return os.environ.get("DOCKER_HOST") or DEFAULT_ADDRESS


def client_of(where: str, **options: Any) -> docker.DockerClient:
    """Return a client of the engine at `where` that ignores the user's Docker client configuration.

    Its proxies would end up in the environment of every worker, where none is reachable, and a credential helper that
    is no longer installed would break every build.

    Raises:
        EngineGoneError, DockerException: No engine answers.
    """
    with _CONFIGURING:
        before = os.environ.get(CONFIGURATION)
        os.environ[CONFIGURATION] = str(NO_CREDENTIALS)
        try:
            return _Client(base_url=where, **options)
        except DockerException as error:  # from the first request, which asks for the API's version
            if isinstance(error.__cause__, EngineError):
                raise error.__cause__ from None
            raise
        finally:
            if before is None:
                del os.environ[CONFIGURATION]
            else:
                os.environ[CONFIGURATION] = before


def user_proxies() -> dict[str, str]:
    """Return the proxies of the user's Docker client configuration, as variables.

    A Dockerfile's build with a network may need them; the image keeps none of them.
    """
    try:
        proxies = load_general_config().get("proxies", {})
        wanted = ProxyConfig.from_dict(proxies.get(address()) or proxies.get("default", {}))
        return {str(name): str(value) for name, value in wanted.get_environment().items()}
    except (AttributeError, TypeError):
        return {}  # the file is not a Docker configuration


def connect() -> docker.DockerClient:
    """Return a client of the engine that answers.

    Raises:
        EngineError: No engine answers, or it is on another machine, whose containers have no network namespaces here.
    """
    where = address()
    if not where.startswith("unix://"):
        raise EngineError(
            f"DOCKER_HOST is {where}, but containers must run on this machine: the emulated network is built "
            "from their network namespaces. Unset DOCKER_HOST, or set it to the unix:// socket of a local engine."
        )
    try:
        client = client_of(where)
        client.ping()
    except ENGINE_ERRORS as error:
        why = error.why if isinstance(error, EngineGoneError) else error
        raise EngineError(f"No Docker engine answers at {where} ({why}). `{SETUP}` starts one.") from error
    return client


def is_expected() -> bool:
    """Return whether an engine is expected: DOCKER_HOST is set, or the default socket exists."""
    return bool(os.environ.get("DOCKER_HOST")) or Path(DEFAULT_ADDRESS.removeprefix("unix://")).exists()


def ensure_engine(progress: Callable[[str], None] = print) -> docker.DockerClient:
    """Return a client of the engine; start one if none answers.

    Raises:
        EngineError: The started engine did not come up. The text has the end of its log.
    """
    try:
        return connect()
    except EngineError:
        if not address().startswith("unix://"):
            raise
    progress(f"no Docker engine answers at {address()}: starting one (log: {LOG})")
    start_engine(address())
    return connect()


def start_engine(where: str, options: Sequence[str] = (), record: Path = RECORD, log: Path = LOG) -> OwnEngine | None:
    """Start a `dockerd` that outlives this process, record it, and wait until it answers.

    When two processes call this at once, the second waits for the first.

    Returns:
        The engine; None if another process has started one meanwhile, which answers.

    Raises:
        EngineError: It ended early, or did not answer within START_TIMEOUT_S.
    """
    program = shutil.which("dockerd")
    if program is None:
        raise EngineError(
            f"No Docker engine answers at {where}, and `dockerd` is not installed. Install Docker "
            "(Debian, Ubuntu: apt-get install docker.io) and try again."
        )
    record.parent.mkdir(parents=True, exist_ok=True)
    with record.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return None if answers(where) else _start(program, where, options, record, log)


def _start(program: str, where: str, options: Sequence[str], record: Path, log: Path) -> OwnEngine:
    log.parent.mkdir(parents=True, exist_ok=True)
    leave_root_group()
    if not options:
        remove_stale_pid_files(PID_FILES)
    command = [program, "--host", where, *options]
    process, engine = _spawn(command, where, record, log)
    deadline = time.monotonic() + START_TIMEOUT_S
    while not answers(where):
        in_time = time.monotonic() < deadline
        if process.poll() is not None:
            record.unlink()
            # The second attempt finds the programs in memory, which a machine that has just started reads slowly.
            if not (in_time and any(CONTAINERD_LATE in line for line in last_lines(log, 1))):
                raise EngineError(_failed(f"dockerd {how_it_ended(process.returncode)} before it answered", log))
            process, engine = _spawn(command, where, record, log)
        elif not in_time:
            stop_engine(record)
            raise EngineError(_failed(f"dockerd did not answer at {where} within {START_TIMEOUT_S:.0f} s", log))
        time.sleep(0.1)
    return engine


def _spawn(command: Sequence[str], where: str, record: Path, log: Path) -> tuple[subprocess.Popen[bytes], OwnEngine]:
    """Start the engine's process and record it."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C for a run must not end the engine
        )
    engine = OwnEngine(ProcessIdentity.of(process.pid) or ProcessIdentity(process.pid, -1), where)
    write_json(record, engine.to_json())
    return process, engine


def remove_stale_pid_files(files: Mapping[str, Path]) -> None:
    """Remove each file in `files`, by program, that names a process which is not that program.

    An engine that was killed leaves such files, and where they outlive a boot (a container that starts again, a machine
    from a snapshot) the number is soon another process's. `dockerd` takes that process for its own, and does not
    start or waits for its answer.
    """
    for program, file in files.items():
        try:
            running = (PROC / file.read_text().strip() / "comm").read_text(errors="replace").strip()
        except OSError:  # no file or no such process
            running = None
        if running != program:
            file.unlink(missing_ok=True)


def leave_root_group(hierarchy: Path = CONTROL_GROUPS) -> None:
    """Make room for an engine's control groups where this process is in a container with a cgroup namespace of its own.

    In cgroup v2 a group that has processes can't limit the memory of groups within it, and a container's processes are
    in the group that is the root of its namespace. They are moved into a group beside those of the engine. The
    machine's own root group has no such rule and no `cgroup.type`; it is left alone, as is one without processes.
    """
    if not (hierarchy / "cgroup.type").exists():
        return
    try:
        inside = (hierarchy / "cgroup.procs").read_text().split()
        if not inside:
            return
        (hierarchy / OWN_GROUP).mkdir(exist_ok=True)
        for pid in inside:
            with suppress(ProcessLookupError):  # it ended meanwhile
                (hierarchy / OWN_GROUP / "cgroup.procs").write_text(pid)
        controllers = (hierarchy / "cgroup.controllers").read_text().split()
        (hierarchy / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))
    except OSError as error:  # a hierarchy that is only read, say; the engine says which limits it can't set
        log.warning("%s: %s; containers with limits may not start", hierarchy, error)


def own_engine(record: Path = RECORD) -> OwnEngine | None:
    """Return the engine that was started here, if it still runs.

    An unreadable record counts as none and is logged: an engine that is not known to be ours is never stopped.
    """
    try:
        engine = OwnEngine.from_json(json.loads(record.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        log.warning("%s is not a valid engine record (%r): a running engine counts as not ours", record, error)
        return None
    return engine if engine.process.is_running else None


def stop_engine(record: Path = RECORD) -> bool:
    """Stop the engine that was started here, and no other; return whether there was one.

    Raises:
        EngineError: It did not end within STOP_TIMEOUT_S.
    """
    engine = own_engine(record)
    if engine is not None:
        engine.process.send(signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while engine.process.is_running:
            if time.monotonic() > deadline:
                raise EngineError(f"dockerd (process {engine.process.pid}) did not end within {STOP_TIMEOUT_S:.0f} s.")
            time.sleep(0.1)
    record.unlink(missing_ok=True)
    return engine is not None


def answers(where: str) -> bool:
    """Return whether an engine answers at this address."""
    with suppress(*ENGINE_ERRORS), closing(client_of(where)) as client:
        return bool(client.ping())
    return False


def proven_process(container: str, pid: int, own_network: bool = True) -> ProcessIdentity | None:
    """Return the process `pid` after proving that it is in the container with this ID; None if it has ended.

    The proof is its control group: its path holds the container's ID of 64 random digits, and no process without
    capabilities can leave it. With `own_network`, its network namespace must not be this process's own, either.

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
    # The files may have been those of an ending process or of its successor.
    if is_ending(pid) or not process.is_running:
        return None
    if not member:
        raise ForeignEngineError(container, pid, "this machine's process of that number is not in it")
    if shared and own_network:
        raise ForeignEngineError(container, pid, "that process uses this machine's own network namespace")
    return process


def check_namespace(client: docker.DockerClient) -> None:
    """Check that the engine's process ids are this machine's, as far as that shows without starting a container.

    Raises:
        ForeignEngineError: They are another machine's, or another PID namespace's.
    """
    if listener_pid() == 0:
        raise ForeignEngineError(None, None, "listens in a process that this machine does not see")
    info, own = client.info(), platform.release()
    if DESKTOP in str(info.get("OperatingSystem")):
        raise ForeignEngineError(None, None, f"is that of {info['OperatingSystem']}")
    if info.get("KernelVersion", own) != own:
        raise ForeignEngineError(None, None, f"runs on Linux {info['KernelVersion']}, and this machine on {own}")
    strangers = []
    # Only root sees every process. A container with privileges may have left its control group, so one proof is enough.
    for found in client.api.containers(limit=MOST_ASKED, filters={"status": "running"}) if os.geteuid() == 0 else ():
        container = str(found["Id"])
        try:
            pid = int(client.api.inspect_container(container)["State"]["Pid"])
            if proven_process(container, pid, own_network=False) is not None:  # another's may use the host's network
                return
        except NotFound:  # it was removed meanwhile
            continue
        except ForeignEngineError as error:
            strangers.append(error)
    if strangers:
        raise strangers[0]


def listener_pid() -> int:
    """Return the process id that listens at the engine's socket; 0 if it is in another PID namespace.

    With socket activation, that process is systemd. Raises EngineGoneError if no process listens.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(f"/{address().removeprefix('unix://')}")  # Docker's client adds a missing / too
        except OSError as error:
            raise EngineGoneError(error) from error
        pid, _, _ = PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
    return int(pid)


def _failed(what: str, log: Path) -> str:
    quoted = "\n".join(f"    {line}" for line in last_lines(log, LOG_TAIL_LINES, CONNECTING))
    return (
        f"{what}. The end of {log}:\n{quoted}\n"
        "Fix what the log names, or start an engine yourself (systemctl start docker), and try again."
    )


def main() -> None:
    """Run `python -m testbed.emulation.containers.engine [stop]`: ensure an engine, or stop the one started here.

    With `become` and options of `dockerd`, this process becomes the engine: the first process of a container does so.
    """
    if sys.argv[1:2] == ["become"]:
        leave_root_group()
        remove_stale_pid_files(PID_FILES)
        os.execvp("dockerd", ["dockerd", *sys.argv[2:]])
    if sys.argv[1:] == ["stop"]:
        print("stopped" if stop_engine() else "no engine that was started here is running")
    else:
        version = ensure_engine().version()["Version"]
        owner = "started here" if own_engine() else "already running"
        print(f"Docker {version} at {address()} ({owner})")


if __name__ == "__main__":
    sys.exit(run_program(main))
