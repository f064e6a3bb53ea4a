"""A fleet whose containers others remove or the engine does not start; after `remove` a fleet starts no container."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import CancelledError
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import docker
import pytest
from docker.errors import APIError, NotFound
from docker.models.containers import Container
from requests import ConnectionError

from testbed.emulation.containers import fleet as fleet_module
from testbed.emulation.containers.engine import ForeignEngineError
from testbed.emulation.containers.fleet import CONTROL_FOLDER, FILES, ContainerDied, ContainerRequest, Fleet
from testbed.emulation.containers.limits import CHANGES, OUT, ScratchSpace
from testbed.emulation.interrupt import Interrupted
from testbed.emulation.process import ProcessIdentity
from testbed.spec.topology import Worker


class Gone:
    """In the place of a container that the engine no longer has."""

    id = "gone"

    def reload(self) -> None:
        raise NotFound("no such container")

    def remove(self, **_: object) -> None:
        raise NotFound("no such container")

    def rename(self, _: str) -> None:
        raise NotFound("no such container")


class Away(Fleet):
    """Its engine starts nothing at the moment."""

    def start(self, requests: Iterable[ContainerRequest]) -> Mapping[str, ProcessIdentity]:
        raise ConnectionError


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """With lima-w0 in it, whose container is gone."""
    client = SimpleNamespace(containers=SimpleNamespace(list=lambda **_: [], get=lambda _: Gone()))
    fleet = Away(cast(docker.DockerClient, client), "andes", "image", tmp_path)
    fleet._containers["lima-w0"] = cast(Container, Gone())
    return fleet


@pytest.mark.local
def test_the_program_that_does_nothing_starts_for_everybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The containers' user is no user of this machine, whatever this machine's umask is."""
    monkeypatch.setattr(fleet_module, "IDLE_BINARY", tmp_path / "testbed-idle")
    before = os.umask(0o077)
    try:
        assert fleet_module.idle_program().stat().st_mode & 0o777 == 0o755
    finally:
        os.umask(before)
    (tmp_path / "testbed-idle").chmod(0o700)  # as an earlier version left it
    assert fleet_module.idle_program().stat().st_mode & 0o777 == 0o755


@pytest.mark.pure
def test_one_that_is_not_started_again_stays_known(fleet: Fleet) -> None:
    lima = Worker("lima-w0", "lima", 1.0, None, 0, None)
    with pytest.raises(ConnectionError):
        fleet.restart(ContainerRequest(lima, None))
    assert fleet.running() == {"lima-w0": False}


@pytest.mark.pure
def test_one_that_somebody_removed_has_crashed(fleet: Fleet) -> None:
    assert fleet.exit_code("lima-w0") is None
    assert fleet.deaths().keys() == {"lima-w0"}


@pytest.mark.local
def test_one_that_somebody_removed_is_replaced(fleet: Fleet) -> None:
    with fleet.replacing(["lima-w0"]):
        assert fleet.running() == {}
    assert fleet.running() == {}


@pytest.mark.pure
def test_a_replacement_that_is_taken_back_is_known_no_more(fleet: Fleet) -> None:
    """`remove` ends the programs itself where the engine does not answer."""
    first, second = ProcessIdentity(2, 1), ProcessIdentity(3, 1)
    fleet._programs["lima-w0"] = first
    with pytest.raises(OSError), fleet.replacing(["lima-w0"]):
        fleet._programs["lima-w0"] = second
        raise OSError
    assert fleet._programs == {"lima-w0": first}


@pytest.mark.pure
def test_those_that_the_engine_does_not_set_aside_stay_known_by_their_names(fleet: Fleet) -> None:
    def refuse(_: str) -> None:
        raise ConnectionError

    names: list[str] = []
    for worker, rename in (("lima-w1", names.append), ("lima-w2", refuse)):
        fleet._containers[worker] = cast(Container, SimpleNamespace(id=worker, rename=rename))
    with pytest.raises(ConnectionError), fleet.replacing(["lima-w1", "lima-w2"]):
        pass
    assert fleet.running().keys() == {"lima-w0", "lima-w1", "lima-w2"}
    assert names == ["testbed-andes.lima-w1.before", "testbed-andes.lima-w1"]


@pytest.mark.local
def test_those_that_an_earlier_replacement_left_aside_go_first(fleet: Fleet) -> None:
    asked: list[str] = []
    left = SimpleNamespace(remove=lambda **_: asked.append("removed"))
    fleet.client = cast(docker.DockerClient, SimpleNamespace(containers=SimpleNamespace(get=lambda name: left)))
    fleet._containers["lima-w1"] = cast(Container, SimpleNamespace(rename=asked.append, remove=lambda **_: None))
    with fleet.replacing(["lima-w1"]):
        pass
    assert asked == ["removed", "testbed-andes.lima-w1.before"]


@pytest.mark.local
def test_one_that_the_engine_refuses_to_remove_keeps_no_other_one(fleet: Fleet) -> None:
    def refuse(**_: object) -> None:
        refusal = SimpleNamespace(status_code=500)
        raise APIError("device or resource busy", cast(Any, refusal))

    removed: list[str] = []
    others = [f"lima-w{number}" for number in range(2, 2 + 2 * fleet_module.PARALLEL)]
    for worker in ("lima-w1", *others):
        remove = refuse if worker == "lima-w1" else lambda **_: removed.append("another one")
        fleet._containers[worker] = cast(Container, SimpleNamespace(rename=lambda _: None, remove=remove))
    with pytest.raises(APIError), fleet.replacing(["lima-w1", *others]):
        pass
    assert len(removed) == len(others)


GIB = 1 << 30


class Engine:
    """The client of an engine that has no containers.

    `created` counts the containers that it was asked for, and `settings` has those of the last one.
    """

    def __init__(self) -> None:
        self.created = 0
        self.settings: dict[str, Any] = {}
        self.containers = SimpleNamespace(list=lambda **_: [], create=self._create)

    def info(self) -> dict[str, Any]:
        return {"MemoryLimit": True, "SwapLimit": True, "PidsLimit": True}

    def _create(self, *_: Any, **settings: Any) -> Any:
        self.created += 1
        self.settings = settings
        attrs = {"State": {"Pid": 1 << 30}}
        container = SimpleNamespace(id="0" * 64, start=lambda: None, reload=lambda: None, status="running", attrs=attrs)
        container.wait = self._wait
        return container

    def _wait(self, timeout: float) -> None:
        raise ConnectionError("the container goes on running")


class InterruptedPool:
    """A pool that is interrupted as it starts a thread, which begins when it is told to."""

    begin: Callable[[], tuple[str, ProcessIdentity]]

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> InterruptedPool:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, start: Callable[[Any], tuple[str, ProcessIdentity]], requests: Iterable[Any]) -> None:
        (request,) = requests
        InterruptedPool.begin = lambda: start(request)
        raise Interrupted("SIGINT")


@pytest.mark.local
def test_a_thread_that_begins_when_all_were_removed_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client: Any = Engine()
    request = ContainerRequest(Worker("lima-w0", "lima", 1.0, None, 0, GIB), ["worker"])
    workers = Fleet(client, "one", "image", tmp_path)
    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(fleet_module, "ThreadPoolExecutor", InterruptedPool)
        workers.start([request])
    workers.remove()
    with pytest.raises(CancelledError):
        InterruptedPool.begin()
    assert client.created == 0
    with pytest.raises(ForeignEngineError):  # this engine's process is none of this machine's
        workers.start([request])
    assert client.created == 1, "as others are, which are started after that"


@pytest.mark.local
@pytest.mark.parametrize("given", [True, False])
def test_a_volume_of_an_image_does_not_take_the_place_of_a_folder_that_is_mounted(given: bool, tmp_path: Path) -> None:
    client: Any = Engine()
    worker = Worker("lima-w0", "lima", 1.0, None, 0, GIB)
    request = ContainerRequest(worker, ["worker"], files=tmp_path if given else None)
    scratch = ScratchSpace(volumes=(FILES, CONTROL_FOLDER, "/data"))
    with pytest.raises(ForeignEngineError):  # this engine's process is none of this machine's
        Fleet(client, "one", "image", tmp_path, scratch).start([request])
    assert set(client.settings["tmpfs"]) == {"/tmp", "/data"} | (set() if given else {FILES})


@pytest.mark.local
@pytest.mark.parametrize("there", [0, 2])
def test_workers_have_gpus_of_their_own(there: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the driver does not name the GPUs, the engine chooses them."""
    monkeypatch.setattr(fleet_module, "GPUS", tmp_path / "gpus")
    for number in range(there):
        (tmp_path / "gpus" / f"0000:0{number}:00.0").mkdir(parents=True)
    client: Any = Engine()
    workers = Fleet(client, "one", "image", tmp_path)
    wanted = []
    for name in ("lima-w0", "lima-w1", "lima-w0"):  # the first one twice: it was started again
        with pytest.raises(ForeignEngineError):  # this engine's process is none of this machine's
            workers.start([ContainerRequest(Worker(name, "lima", 1.0, None, 1, GIB), ["worker"])])
        (request,) = client.settings["device_requests"]
        wanted.append((request["Count"], request["DeviceIDs"]))
    assert wanted == ([(0, ["0"]), (0, ["1"]), (0, ["0"])] if there else [(1, [])] * 3)


@pytest.mark.local
def test_a_container_that_ended_before_the_engine_noticed_is_not_a_foreign_engine_s() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()

    def wait(timeout: float) -> None:
        container.status, container.attrs["State"]["ExitCode"] = "exited", 7

    state = {"Pid": ended.pid, "OOMKilled": False, "ExitCode": 0}
    container: Any = SimpleNamespace(id="0" * 64, reload=lambda: None, status="running", wait=wait)
    container.attrs = {"State": state, "HostConfig": {"Memory": 0}}
    container.logs = lambda **_: [b""]
    with pytest.raises(ContainerDied, match="exit code 7"):
        fleet_module._first_process(container, "lima-w0")


@pytest.mark.pure
def test_compiled_code_can_be_loaded_from_tmp_and_the_image_s_volumes_alone() -> None:
    tmpfs = ScratchSpace(out_bytes=1 << 20, volumes=("/data",)).settings()["tmpfs"]
    assert {place for place, options in tmpfs.items() if "exec" in options.split(",")} == {"/tmp", "/data"}
    assert set(tmpfs) == {"/tmp", "/data", OUT, CHANGES}
    assert "mode=700" in tmpfs[CHANGES].split(","), "what programs change in their folder is not theirs to look at"
