"""Any error that a Docker client raises becomes a text for the user; a container's process is proven to be it."""

from __future__ import annotations

import errno
import os
import platform
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import MagicMock

import docker.errors
import pytest
import requests
import urllib3

from testbed.emulation import process
from testbed.emulation.containers import engine
from testbed.emulation.errors import ending_of
from testbed.emulation.process import PF_EXITING, ProcessIdentity
from testbed.errors import CANNOT

ERRORS = [
    docker.errors.DockerException("x"),
    docker.errors.APIError("x"),
    docker.errors.NotFound("x"),
    docker.errors.ImageNotFound("x"),
    docker.errors.NullResource("x"),
    docker.errors.InvalidVersion("x"),
    docker.errors.BuildError("x", iter(())),
    docker.errors.ContainerError(None, 1, "x", "image", b""),  # type: ignore[no-untyped-call]
    docker.errors.StreamParseError("x"),  # type: ignore[no-untyped-call]
    requests.ConnectionError("x"),
    requests.ReadTimeout("x"),
    requests.exceptions.ChunkedEncodingError("x"),
    requests.exceptions.JSONDecodeError("x", "", 0),
    urllib3.exceptions.ProtocolError("x"),
    urllib3.exceptions.ReadTimeoutError(None, None, "x"),  # type: ignore[arg-type]
    engine.EngineError("x"),
]


@pytest.mark.pure
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_each_error_of_a_client_is_the_machines(error: Exception) -> None:
    assert isinstance(error, engine.ENGINE_ERRORS)
    error.add_note("and then something else")
    code, text = ending_of(error)
    assert code == CANNOT
    assert text.endswith("and then something else")


@pytest.mark.pure
def test_an_image_that_was_removed_meanwhile_is_named_with_what_to_do() -> None:
    why = "No such image: testbed-worker:1"
    code, text = ending_of(docker.errors.ImageNotFound("404", explanation=why))
    assert code == CANNOT
    assert why in text and "Call the command again" in text


@pytest.mark.pure
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_client_without_a_file_to_open_is_said_to_have_none(error: Exception) -> None:
    error.__context__ = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    assert "ulimit -n 65536" in ending_of(error)[1]
    error.__context__ = None


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[str]:
    """Yield the address of an engine that accepts connections and closes them."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "engine.sock"))
        listener.listen()
        yield f"unix://{tmp_path}/engine.sock"


@pytest.mark.local
@pytest.mark.parametrize("version", ["1.41", None])
def test_a_socket_that_vanishes_is_an_engine_that_is_gone(silent: str, version: str | None) -> None:
    Path(silent.removeprefix("unix://")).unlink()
    with pytest.raises(engine.ENGINE_ERRORS):
        engine.client_of(silent, version=version).ping()
    with pytest.raises(engine.EngineGoneError):
        engine.client_of(silent, version="1.41").containers.list()


@pytest.mark.local
def test_an_engine_that_does_not_answer_in_time_is_gone(silent: str) -> None:
    with pytest.raises(engine.EngineGoneError):
        engine.client_of(silent, version="1.41", timeout=0.1).images.get("x")


@pytest.mark.local
def test_a_client_needs_no_room_for_temporary_files(
    silent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    (tmp_path / "config.json").write_text('{"proxies": {"default": {"httpProxy": "http://proxy.example:3128"}}}')
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setattr(tempfile, "mkdtemp", full)
    client = engine.client_of(silent, version="1.41")
    assert not client.api._auth_configs.is_empty, "it would read the user's before a build"
    assert client.api._proxy_configs.http is None
    assert os.environ["DOCKER_CONFIG"] == str(tmp_path)
    assert [each.name for each in engine.NO_CREDENTIALS.iterdir()] == ["config.json"]


@pytest.mark.local
def test_an_engine_that_another_process_has_started_meanwhile_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where two set-ups run at once: the second gets the lock when the engine of the first answers."""
    (tmp_path / "dockerd").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "dockerd").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    started: list[object] = []
    monkeypatch.setattr(engine.fcntl, "flock", lambda *call: started.append(call))
    monkeypatch.setattr(engine, "answers", lambda _: bool(started))
    record = tmp_path / "engine.json"
    assert engine.start_engine(f"unix://{tmp_path}/sock", (), record, tmp_path / "log") is None
    assert not record.exists() and len(started) == 1


@pytest.fixture
def dockerd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function that puts a shell script in the place of `dockerd` and returns the file that it counts in.

    The engine answers once the script has run twice.
    """
    counted = tmp_path / "starts"

    def put(script: str) -> Path:
        (tmp_path / "dockerd").write_text(f"#!/bin/sh\necho start >>{counted}\n{script}\n")
        (tmp_path / "dockerd").chmod(0o755)
        return counted

    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(engine, "PID_FILES", {})
    monkeypatch.setattr(engine, "answers", lambda _: counted.exists() and len(counted.read_text().splitlines()) == 2)
    return put


@pytest.mark.local
def test_an_engine_whose_containerd_started_late_is_started_again(
    dockerd: Callable[[str], Path], tmp_path: Path
) -> None:
    """As on a machine that has just booted and reads its programs from a slow disk."""
    starts = dockerd("echo failed to start containerd: timeout waiting for containerd to start; exit 1")
    record = tmp_path / "engine.json"
    assert engine.start_engine(f"unix://{tmp_path}/sock", (), record, tmp_path / "log") is not None
    assert starts.read_text() == "start\nstart\n" and record.exists()


@pytest.mark.local
def test_an_engine_that_ends_by_itself_is_said_to(dockerd: Callable[[str], Path], tmp_path: Path) -> None:
    starts = dockerd('echo bad flag; for n in $(seq 20); do echo "attempt $n module=grpc"; done; exit 4')
    record = tmp_path / "engine.json"
    with pytest.raises(engine.EngineError, match="exit code 4") as raised:
        engine.start_engine(f"unix://{tmp_path}/sock", (), record, tmp_path / "log")
    assert "bad flag" in str(raised.value) and "attempt" not in str(raised.value)
    assert starts.read_text() == "start\n" and not record.exists()


@pytest.mark.local
@pytest.mark.parametrize("content", ["{stranger}", "{stranger}\n", "4194305", "", "x"])
def test_a_pid_file_that_names_another_program_is_removed(content: str, tmp_path: Path) -> None:
    """As after a kill, where the file outlived a boot; `dockerd` would take any process of that number for its own."""
    file = tmp_path / "containerd.pid"
    file.write_text(content.format(stranger=os.getpid()))
    engine.remove_stale_pid_files({"containerd": file, "dockerd": tmp_path / "none"})
    assert not file.exists()


@pytest.mark.local
def test_the_pid_file_of_an_engine_that_runs_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "docker.pid"
    file.write_text(str(os.getpid()))
    engine.remove_stale_pid_files({Path("/proc/self/comm").read_text().strip(): file})
    assert file.exists()


# The proof that a process is a container's, read from a folder that stands for /proc ---------------------------------

CONTAINER = secrets.token_hex(32)
PID = 212

Write = Callable[..., None]

#: How engines lay control groups out, and how they look from within a control group namespace.
OURS = {
    "v1": f"12:pids:/docker/{CONTAINER}\n1:name=systemd:/docker/{CONTAINER}\n",
    "v2": f"0::/system.slice/docker-{CONTAINER}.scope\n",
    "v2, with groups of the container's own": f"0::/system.slice/docker-{CONTAINER}.scope/init\n",
    "from a container beside it": f"0::/../{CONTAINER}\n",
    "in an engine in a container": f"0::/docker/{secrets.token_hex(32)}/docker/{CONTAINER}\n",
}
STRANGERS = {
    "this machine's": "0::/system.slice/ssh.service\n",
    "another container's": f"0::/system.slice/docker-{secrets.token_hex(32)}.scope\n",
    "without groups": "",
}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Return a function that writes a process into the folder that stands for /proc."""
    for module in (process, engine):
        monkeypatch.setattr(module, "PROC", tmp_path)
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/net").touch()

    def written(groups: str, own_network: bool = True, state: str = "S", flags: int = 0, ticks: int = 7) -> None:
        folder = tmp_path / str(PID)
        (folder / "ns").mkdir(parents=True)
        (folder / "stat").write_text(f"{PID} (a b) {state} 1 2 3 4 5 {flags} {'0 ' * 12}{ticks} 0\n")
        (folder / "cgroup").write_text(groups)
        if own_network:
            (folder / "ns/net").touch()
        else:
            (folder / "ns/net").hardlink_to(tmp_path / "self/ns/net")

    return written


@pytest.mark.pure
@pytest.mark.parametrize("groups", OURS.values(), ids=OURS)
def test_a_container_s_process_is_proven(write: Write, groups: str) -> None:
    write(groups)
    found = engine.proven_process(CONTAINER, PID)
    assert isinstance(found, ProcessIdentity) and (found.pid, found.start_ticks) == (PID, 7)


@pytest.mark.pure
@pytest.mark.parametrize("groups", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_of_the_same_number_is_refused(write: Write, groups: str) -> None:
    write(groups)
    with pytest.raises(engine.ForeignEngineError) as caught:
        engine.proven_process(CONTAINER, PID)
    assert (caught.value.container, caught.value.pid) == (CONTAINER, PID)


@pytest.mark.pure
def test_a_process_in_this_machine_s_own_network_is_refused(write: Write) -> None:
    write(OURS["v2"], own_network=False)
    with pytest.raises(engine.ForeignEngineError):
        engine.proven_process(CONTAINER, PID)


@pytest.mark.pure
@pytest.mark.parametrize(("state", "flags"), [("R", PF_EXITING), ("Z", PF_EXITING), ("X", 0)])
def test_one_that_is_ending_is_no_stranger(write: Write, state: str, flags: int) -> None:
    """The kernel takes it out of its control group before it is a zombie."""
    write("0::/\n", state=state, flags=flags)
    assert engine.proven_process(CONTAINER, PID) is None


@pytest.mark.pure
def test_a_process_that_has_ended_is_not_proven(write: Write) -> None:
    assert engine.proven_process(CONTAINER, PID) is None


# An engine of another PID namespace, without a container of ours ------------------------------------------------------


def asked(monkeypatch: pytest.MonkeyPatch, listener: int = 1, root: bool = True, **info: str) -> MagicMock:
    """Return the client of an engine on this machine with one running container, whose process is PID."""
    monkeypatch.setattr(engine, "listener_pid", lambda: listener)
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    client = MagicMock()
    client.info.return_value = {"OperatingSystem": "Debian", "KernelVersion": platform.release(), **info}
    client.api.containers.return_value = [{"Id": CONTAINER}]
    client.api.inspect_container.return_value = {"State": {"Pid": PID}}
    return client


@pytest.mark.pure
def test_an_engine_whose_container_s_process_is_here_is_this_machine_s(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = asked(monkeypatch)
    engine.check_namespace(client)  # the process has ended, so nothing shows
    write(OURS["v2"])
    engine.check_namespace(client)
    client.api.containers.return_value = []
    engine.check_namespace(client)


@pytest.mark.pure
@pytest.mark.parametrize(
    ("listener", "info"),
    [(0, {}), (1, {"KernelVersion": "5.15.0-linuxkit"}), (1, {"OperatingSystem": "Docker Desktop"})],
)
def test_an_engine_elsewhere_is_known_without_a_container(
    monkeypatch: pytest.MonkeyPatch, listener: int, info: dict[str, str]
) -> None:
    client = asked(monkeypatch, listener, True, **info)
    client.api.containers.return_value = []
    with pytest.raises(engine.ForeignEngineError, match="another PID namespace") as caught:
        engine.check_namespace(client)
    assert caught.value.container is None and ending_of(caught.value)[0] == CANNOT


@pytest.mark.pure
def test_an_engine_elsewhere_is_known_by_a_container_that_runs(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write(STRANGERS["this machine's"])
    with pytest.raises(engine.ForeignEngineError) as caught:
        engine.check_namespace(asked(monkeypatch))
    assert (caught.value.container, caught.value.pid) == (CONTAINER, PID)
    engine.check_namespace(asked(monkeypatch, root=False))  # such a user may not see the process


@pytest.mark.pure
def test_a_container_on_the_host_s_network_is_no_sign_of_an_engine_elsewhere(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(OURS["v2"], own_network=False)
    engine.check_namespace(asked(monkeypatch))


@pytest.mark.pure
def test_a_container_that_is_removed_meanwhile_shows_nothing(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    client = asked(monkeypatch)
    client.api.inspect_container.side_effect = docker.errors.NotFound("no such container")
    engine.check_namespace(client)
    write(STRANGERS["this machine's"])
    client.api.containers.return_value = [{"Id": CONTAINER}] * 2
    client.api.inspect_container.side_effect = [docker.errors.NotFound("gone"), {"State": {"Pid": PID}}]
    with pytest.raises(engine.ForeignEngineError):
        engine.check_namespace(client)


@pytest.mark.local
def test_the_listener_at_a_socket_is_known(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", silent)
    assert engine.listener_pid() == os.getpid()
    monkeypatch.setenv("DOCKER_HOST", silent.replace(":///", "://"))
    assert engine.listener_pid() == os.getpid()


@pytest.mark.system
def test_a_listener_outside_of_a_pid_namespace_has_no_number_in_it(silent: str) -> None:
    ask = "from testbed.emulation.containers import engine; print(engine.listener_pid())"
    command = ["unshare", "--pid", "--fork", sys.executable, "-c", ask]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "DOCKER_HOST": silent}
    )
    assert done.stdout == "0\n"


@pytest.mark.local
@pytest.mark.parametrize("inside", ["17\n40\n", ""])
def test_the_processes_of_a_container_make_room_for_an_engine_s_groups(inside: str, tmp_path: Path) -> None:
    (tmp_path / "cgroup.type").write_text("domain\n")
    (tmp_path / "cgroup.procs").write_text(inside)
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    engine.leave_root_group(tmp_path)
    moved = (tmp_path / engine.OWN_GROUP / "cgroup.procs").exists()
    assert moved == bool(inside)
    assert not moved or (tmp_path / "cgroup.subtree_control").read_text() == "+cpu +memory"


@pytest.mark.pure
def test_a_machine_s_own_root_group_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("17\n")
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    engine.leave_root_group(tmp_path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["cgroup.controllers", "cgroup.procs"]
