"""Clean-up finds by label all that a killed testbed left, and touches nothing else."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker
import pytest

from testbed.emulation import cleanup, label
from testbed.emulation.cleanup import CleanupResult, clean, clean_crashed, find, sweep
from testbed.emulation.containers import engine
from testbed.emulation.containers import fleet as containers
from testbed.emulation.containers.image import PROBE_NETWORK, probe_network
from testbed.emulation.process import ProcessIdentity
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]

#: Starts an owner of a network of this name; it, and the pids of its routers.
Start = Callable[..., tuple[subprocess.Popen[str], list[int]]]

#: A testbed in small: an owner with a network of one link, until it is asked to end or killed.
OWNER = """
import signal, sys, time
from pathlib import Path
from testbed.emulation import label
from testbed.emulation.network.network import Network
from testbed.emulation.shaping import open_shaper
from testbed.spec.topology import Topology

label.STATE_ROOT, label.ENVIRONMENT = Path(sys.argv[1]), sys.argv[2]
sites = {"quito": {"workers": 1}, "lima": {"workers": 1}}
link = {"between": ["quito", "lima"], "rate": "10mbit", "delay": "5ms"}
topology = Topology.from_value({"name": "two", "sites": sites, "links": [link]}, Path("two.yaml"))


def end(*_):
    raise SystemExit


signal.signal(signal.SIGTERM, signal.SIG_IGN if "deaf" in sys.argv else end)
with label.labelled(sys.argv[3]), open_shaper() as shaper:
    network = Network(sys.argv[3], topology, shaper, lambda *_: None)
    network.build()
    try:
        print(*(network.router(site).pid for site in sites), flush=True)
        time.sleep(600)
    finally:
        network.stop()
        Path(sys.argv[1], "in-order").touch()
"""


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this test a state folder and labels of its own, so that it sees and ends no testbed that is up meanwhile."""
    monkeypatch.setattr(label, "STATE_ROOT", tmp_path)
    monkeypatch.setattr(label, "ENVIRONMENT", f"TESTBED_TEST_{os.getpid()}")
    for module in (label, containers):
        monkeypatch.setattr(module, "LABEL", f"testbed.test.{os.getpid()}")


@pytest.fixture
def owned() -> Iterator[Start]:
    """Whatever a failed test leaves of an owner is ended."""
    started = []

    def start(network: str, *more: str) -> tuple[subprocess.Popen[str], list[int]]:
        words = [sys.executable, "-c", OWNER, str(label.STATE_ROOT), label.ENVIRONMENT, network, *more]
        path = {**os.environ, "PYTHONPATH": str(ROOT)}
        owner = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=path)
        started.append(owner)
        assert owner.stdout
        return owner, [int(pid) for pid in owner.stdout.readline().split()]

    yield start
    label.kill_processes()
    for owner in started:
        owner.kill()
        owner.communicate()


def await_gone(pids: list[int]) -> None:
    """Wait until all these processes are gone: a killed one has its last moments."""
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def kill(owner: subprocess.Popen[str], routers: list[int]) -> None:
    """Kill an owner, and do not reap it, as where no one is there to do that. The kernel ends its routers with it.

    They may end before all threads of the owner have.
    """
    os.kill(owner.pid, signal.SIGKILL)
    await_gone(routers)
    until(lambda: ProcessIdentity.of(owner.pid) is None)


def test_a_running_testbed_is_asked_to_end_and_takes_its_network_away_itself(owned: Start) -> None:
    owner, routers = owned("one")
    assert clean(None, "one") == CleanupResult(("one",), (), ())
    assert owner.wait(PATIENCE_S) == 0
    assert (label.STATE_ROOT / "in-order").exists()
    await_gone(routers)
    assert label.networks() == []


def test_a_full_disk_keeps_nothing_from_being_removed(owned: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on the device", label.OWNER)

    kill(*owned("one"))
    with subprocess.Popen(["sleep", "60"], env={**os.environ, label.ENVIRONMENT: "one"}) as stray:
        monkeypatch.setattr(label, "write_json", full)
        try:
            assert clean_crashed(None).networks == ("one",)
            assert stray.wait(PATIENCE_S) == -signal.SIGKILL
        finally:
            stray.kill()
    assert label.networks() == []


def test_who_takes_the_name_meanwhile_keeps_it(owned: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    owned("one")
    end, successors = cleanup._end_owner, []

    def end_and_begin(network: str) -> None:
        end(network)
        successors.append(owned("one"))

    monkeypatch.setattr(cleanup, "_end_owner", end_and_begin)
    assert clean(None, "one") == CleanupResult(("one",), (), ())
    ((owner, routers),) = successors
    assert all(Path(f"/proc/{pid}").exists() for pid in routers) and owner.poll() is None


@pytest.mark.parametrize("how", [clean, clean_crashed])
def test_a_label_that_names_a_folder_costs_nobody_that_folder(how: Callable[[None], object], tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    (kept / "inside").mkdir(parents=True)
    (kept / "inside" / "theirs.json").write_text("{}")
    (tmp_path / "networks").mkdir()
    own = ProcessIdentity.own()
    (kept / label.OWNER).write_text(json.dumps({"pid": own.pid, "started": own.start_ticks, "boot": own.boot}))
    (kept / label.LAUNCHES).symlink_to(kept / "inside")
    names = str(kept), "../kept", ".", ".."
    strays = [subprocess.Popen(["sleep", "60"], env={**os.environ, label.ENVIRONMENT: name}) for name in names]
    try:
        until(lambda: len(list(label.processes())) == len(names))
        how(None)
        assert [stray.wait(PATIENCE_S) for stray in strays] == [-signal.SIGKILL] * len(names)
        assert (kept / "inside" / "theirs.json").exists() and (tmp_path / "networks").exists()
    finally:
        for stray in strays:
            stray.kill()


@pytest.mark.tour
def test_what_a_killed_testbed_leaves_is_taken_away(owned: Start) -> None:
    owner, routers = owned("one")
    _, others = owned("two")
    kill(owner, routers)
    assert label.networks() == ["one", "two"]
    assert clean(None, "one").networks == ("one",)
    assert list(label.processes("one")) == []
    assert label.networks() == ["two"]
    assert all(Path(f"/proc/{pid}").exists() for pid in others)
    assert clean(None).networks == ("two",)
    await_gone(others)
    assert clean(None) == CleanupResult((), (), ())


@pytest.mark.tour
def test_beside_a_network_that_runs_the_rest_of_a_crashed_one_is_taken_away(
    owned: Start, client: docker.DockerClient, image: str
) -> None:
    running, routers = owned("runs")
    crashed, others = owned("crashed")
    made = {
        name: client.containers.create(image, ["none"], labels={containers.LABEL: name}, network_mode="none")
        for name in ("runs", "crashed", "forgotten")
    }
    stray, shell = (
        subprocess.Popen(["sleep", "60"], env={**os.environ, label.ENVIRONMENT: name})
        for name in ("../stray", "runs")  # the first may not become a folder's name
    )
    try:
        kill(crashed, others)
        found = {each.network: each for each in find(client)}
        assert {name for name, each in found.items() if each.owner} == {"runs"}
        assert found["forgotten"].containers == (made["forgotten"].name,)
        assert found["../stray"].processes == (stray.pid,)
        done = clean_crashed(client)
        assert set(done.networks) == {"crashed", "forgotten", "../stray"}
        assert set(done.containers) == {made["crashed"].name, made["forgotten"].name}
        assert stray.wait(PATIENCE_S) == -signal.SIGKILL
        assert running.poll() is None
        assert shell.poll() is None
        assert all(Path(f"/proc/{pid}").exists() for pid in routers)
        made["runs"].reload()
        assert label.networks() == ["runs"]
        assert clean_crashed(client) == CleanupResult((), (), ())
    finally:
        for process in (stray, shell):
            process.kill()
            process.wait()
        for container in made.values():
            containers._remove(container)


def test_the_container_of_a_probe_that_is_under_way_is_no_remains() -> None:
    under_way, left = probe_network(), f"{PROBE_NETWORK}-{os.getpid()}-0"
    listed = [SimpleNamespace(name=network, labels={label.LABEL: network}) for network in (under_way, left)]
    client: Any = SimpleNamespace(containers=SimpleNamespace(list=lambda **_: listed))
    owners = {each.network: each.owner for each in find(client)}
    assert {network: owner and owner.pid for network, owner in owners.items()} == {under_way: os.getpid(), left: None}


def test_a_program_without_an_environment_is_spared_with_its_network(owned: Start) -> None:
    """Only its namespace's mark says whose it is."""
    owned("runs")
    programs = {
        name: subprocess.Popen(["env", "-i", *label.marked(["sleep", "60"], {label.ENVIRONMENT: name})])
        for name in ("runs", "crashed")
    }
    try:
        until(lambda: dict(label.processes()).keys() >= {program.pid for program in programs.values()})
        assert programs["crashed"].pid in clean_crashed(None).processes
        assert programs["crashed"].wait(PATIENCE_S) == -signal.SIGKILL
        assert programs["runs"].poll() is None
    finally:
        for program in programs.values():
            program.kill()
            program.wait()


def test_what_a_killed_launch_left_on_a_network_that_runs_is_ended(owned: Start) -> None:
    owner, _ = owned("runs")
    launch = f"killed-{os.getpid()}"
    label.record_launch("runs", launch, ["quito-w0"])
    (record,) = (label.state_folder("runs") / label.LAUNCHES).iterdir()
    record.write_text(record.read_text().replace('"started": ', '"started": 1'))
    with subprocess.Popen(["sleep", "60"], env={**os.environ, label.LAUNCH: launch}) as program:
        try:
            assert clean_crashed(None) == CleanupResult((), (), (program.pid,))
            assert program.wait(PATIENCE_S) == -signal.SIGKILL
        finally:
            program.kill()
    assert owner.poll() is None
    assert not record.exists()


def test_a_testbed_that_does_not_listen_is_ended(owned: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.emulation.cleanup.OWNER_DEADLINE_S", 0.2)
    owner, routers = owned("one", "deaf")
    clean(None)
    assert owner.wait(PATIENCE_S) == -signal.SIGKILL
    await_gone(routers)
    assert label.networks() == []


def test_the_end_of_one_run_takes_nothing_of_another_s(owned: Start, client: docker.DockerClient, image: str) -> None:
    """A second run of the same name is refused, and its clean-up leaves the first one's parts alone."""
    owner, routers = owned("one")
    container = client.containers.create(image, ["none"], labels={containers.LABEL: "one"}, network_mode="none")
    try:
        with pytest.raises(FileExistsError), label.labelled("one"):
            pass
        sweep(client, "one")
        assert owner.poll() is None
        assert all(Path(f"/proc/{pid}").exists() for pid in routers)
        container.reload()
        owner.kill()
        owner.wait()
        sweep(client, "one")
        with pytest.raises(docker.errors.NotFound):
            container.reload()
        assert label.networks() == []
    finally:
        containers._remove(container)


def test_what_is_still_one_s_own_is_swept_away_too() -> None:
    """As where the way back was cut short before the name was given back."""
    with label.labelled("one"), subprocess.Popen(["sleep", "60"]) as ours:
        try:
            sweep(None, "one")
            assert ours.wait(PATIENCE_S) == -signal.SIGKILL
        finally:
            ours.kill()
        assert label.networks() == []


def test_a_testbed_that_ends_just_now_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    seen = iter([ProcessIdentity(ended.pid, 1)])
    monkeypatch.setattr(label, "owner", lambda _: next(seen, None))
    (label.STATE_ROOT / "networks" / "one").mkdir(parents=True)
    assert clean(None, "one") == CleanupResult(("one",), (), ())
    assert label.networks() == []


@pytest.fixture
def client() -> docker.DockerClient:
    return engine.connect()


@pytest.fixture
def image(client: docker.DockerClient) -> Iterator[str]:
    """Import an image with nothing in it, whose containers are made and never started."""
    content = io.BytesIO()
    tarfile.open(fileobj=content, mode="w").close()
    name = f"testbed-test-empty-{os.getpid()}"
    client.api.import_image_from_data(content.getvalue(), repository=name, tag="latest")
    yield f"{name}:latest"
    client.images.remove(f"{name}:latest", force=True)


@pytest.mark.tour
def test_what_is_not_ours_survives(client: docker.DockerClient, image: str) -> None:
    mark = f"foreign{os.getpid()}"
    networks = {"one": containers.LABEL, "two": containers.LABEL, "theirs": "other.label"}
    made = {
        name: client.containers.create(image, ["none"], name=f"{mark}-{name}", labels={key: name}, network_mode="none")
        for name, key in networks.items()
    }
    subprocess.run(["ip", "link", "add", mark, "type", "bridge"], check=True)
    subprocess.run(["ip", "netns", "add", mark], check=True)
    foreign = subprocess.Popen(["sleep", "60"])
    try:
        with label.labelled("one"):
            ours = subprocess.Popen(["sleep", "60"])
        done = clean(client, "one")
        assert done.containers == (f"{mark}-one",)
        assert done.processes == (ours.pid,)
        assert ours.wait() == -signal.SIGKILL
        assert names(client, mark) == {f"{mark}-two", f"{mark}-theirs"}
        assert clean(client).containers == (f"{mark}-two",)
        assert names(client, mark) == {f"{mark}-theirs"}
        assert Path(f"/sys/class/net/{mark}").exists()
        assert Path(f"/run/netns/{mark}").exists()
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait()
        subprocess.run(["ip", "netns", "delete", mark], check=False)
        subprocess.run(["ip", "link", "delete", mark], check=False)
        for container in made.values():
            containers._remove(container)


def names(client: docker.DockerClient, mark: str) -> set[str]:
    return {
        container.name
        for container in client.containers.list(all=True, ignore_removed=True)
        if container.name.startswith(mark)
    }
