"""An engine that we start is recorded and stopped; any other engine is used and left alone."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import docker
import pytest
from docker.credentials.errors import StoreError

from testbed.emulation.containers import engine
from testbed.emulation.containers.engine import EngineError
from testbed.emulation.process import ProcessIdentity, start_ticks
from tests.chaos.own_engine import apart


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Return a folder with a short path: a Unix socket's has at most 107 bytes, and dockerd makes sockets below it."""
    with tempfile.TemporaryDirectory(prefix="tb") as folder:
        yield Path(folder)
        # dockerd mounts its data root on itself, and leaves it so when it fails.
        for line in Path("/proc/self/mounts").read_text().splitlines():
            if (mounted := line.split()[1]).startswith(f"{folder}/"):
                subprocess.run(["umount", mounted], check=True)


@pytest.fixture
def options(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return dockerd's options for a second engine: files and a network namespace of its own."""
    monkeypatch.setenv("PATH", apart(scratch))
    return [
        *("--data-root", str(scratch / "data"), "--exec-root", str(scratch / "exec")),
        *("--pidfile", str(scratch / "pid")),
    ]


@pytest.mark.system
def test_an_engine_is_started_recorded_and_stopped(scratch: Path, options: list[str]) -> None:
    where, record = f"unix://{scratch}/sock", scratch / "record" / "engine.json"
    started = engine.start_engine(where, options, record, scratch / "log")
    try:
        client = docker.DockerClient(base_url=where)
        assert client.info()["DockerRootDir"] == str(scratch / "data")
        client.close()
        assert engine.own_engine(record) == started
        pid = started.process.pid
        assert Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()
        assert os.getsid(pid) == pid, "a Ctrl-C in our terminal would reach it"
    finally:
        assert engine.stop_engine(record)
    assert not started.process.is_running
    assert not record.exists()
    assert not engine.stop_engine(record)


@pytest.mark.system
def test_an_engine_that_fails_is_quoted(scratch: Path, options: list[str]) -> None:
    record = scratch / "engine.json"
    with pytest.raises(EngineError, match="no-such-driver"):
        engine.start_engine(
            f"unix://{scratch}/sock",
            [*options, "--storage-driver", "no-such-driver"],
            record,
            scratch / "log",
        )
    assert not record.exists()


@pytest.mark.system
def test_an_engine_that_answers_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    before = engine.RECORD.read_text() if engine.RECORD.exists() else None
    assert engine.ensure_engine(told.append).ping()
    assert told == []
    assert before == (engine.RECORD.read_text() if engine.RECORD.exists() else None)


@pytest.mark.local
def test_a_process_that_got_the_recorded_id_later_is_not_stopped(tmp_path: Path) -> None:
    record = tmp_path / "engine.json"
    with subprocess.Popen(["sleep", "60"]) as other:
        record.write_text(json.dumps({"pid": other.pid, "start_ticks": 1, "address": "unix:///nowhere"}))
        assert engine.own_engine(record) is None
        assert not engine.stop_engine(record)
        assert other.poll() is None
        other.kill()


@pytest.mark.pure
@pytest.mark.parametrize("text", ["", '{"pid": 1, "sta', "[]", '{"pid": 1}', '{"pid": null, "start_ticks": 1}'])
def test_a_torn_record_names_no_engine_and_that_is_said(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    record = tmp_path / "engine.json"
    record.write_text(text)
    assert engine.own_engine(record) is None
    assert str(record) in caplog.text
    assert not engine.stop_engine(record)


@pytest.mark.pure
def test_an_engine_of_before_a_restart_is_not_ours(tmp_path: Path) -> None:
    record, own = tmp_path / "engine.json", ProcessIdentity.of(os.getpid())
    assert own
    for boot, ours in (({}, True), ({"boot": own.boot}, True), ({"boot": "of-before"}, False)):
        record.write_text(json.dumps({"pid": own.pid, "start_ticks": own.start_ticks, "address": "unix:///x", **boot}))
        assert (engine.own_engine(record) is not None) is ours


@pytest.mark.local
def test_a_process_that_ended_is_not_running() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        ticks = start_ticks(child.pid)
        assert ticks is not None
        ours = ProcessIdentity(child.pid, ticks)
        assert ours.is_running
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
        assert not ours.is_running
    assert not ours.is_running


@pytest.mark.pure
def test_an_engine_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    with pytest.raises(EngineError, match="DOCKER_HOST"):
        engine.ensure_engine()


@pytest.mark.local
def test_without_dockerd_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/sock")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match=r"docker\.io"):
        engine.ensure_engine()


@pytest.fixture
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Write a user's Docker configuration with a missing credential helper and a proxy; return the proxy's settings."""
    proxy = "http://proxy.example:3128"
    value = {"credsStore": "gone", "auths": {"r.example": {}}, "proxies": {"default": {"httpProxy": proxy}}}
    (tmp_path / "config.json").write_text(json.dumps(value))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    return {"HTTP_PROXY": proxy, "http_proxy": proxy}


@pytest.mark.system
def test_a_user_s_client_configuration_reaches_no_build_and_no_container(configuration: dict[str, str]) -> None:
    tag, dockerfile = f"testbed-test:{os.getpid()}", b'FROM scratch\nCMD ["none"]\n'
    with pytest.raises(StoreError):  # as any other client would
        docker.from_env().images.build(fileobj=BytesIO(dockerfile), tag=tag, rm=True)
    client = engine.connect()
    assert engine.user_proxies() == configuration, "the variable is the user's again"
    client.images.build(fileobj=BytesIO(dockerfile), tag=tag, rm=True)
    try:
        container = client.containers.create(tag, network_mode="none")
        try:
            told = client.containers.get(container.id).attrs["Config"]["Env"] or []
            assert not [variable for variable in told if "proxy" in variable.lower()]
        finally:
            container.remove()
    finally:
        client.images.remove(tag)


@pytest.mark.pure
def test_a_dockerfile_s_build_is_told_the_user_s_proxies(configuration: dict[str, str]) -> None:
    assert engine.user_proxies() == configuration


@pytest.mark.pure
@pytest.mark.parametrize("text", ["", "[]", '{"proxies": 1}', '{"proxies": {"default": []}}'])
def test_an_invalid_configuration_names_no_proxies(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(text)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert engine.user_proxies() == {}
