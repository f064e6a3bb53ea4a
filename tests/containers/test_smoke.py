"""`make smoke`: its request to the engine, and the removal of its container in any case. CI makes the run itself."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import docker
import pytest
from docker.errors import ImageNotFound

from containers import smoke
from testbed.emulation.containers import documentation, engine
from testbed.emulation.containers.image import ensure_worker_image
from testbed.emulation.label import LABEL


@pytest.mark.local
@pytest.mark.parametrize(
    ("bounding", "lacking"),
    [
        ("000001ffffffffff", []),
        ("000001fffeffffff", ["SYS_RESOURCE"]),
        ("000001fffeffeffe", ["CHOWN", "NET_ADMIN", "SYS_RESOURCE"]),
    ],
)
def test_what_the_bounding_set_lacks_is_named(bounding: str, lacking: list[str]) -> None:
    assert smoke.missing_capabilities(f"CapEff:\t0\nCapBnd:\t{bounding}\nCapAmb:\t0\n") == lacking


class Images:
    """The images of an engine, each a name with its tags."""

    def __init__(self, **tags: list[str]) -> None:
        self.there = [SimpleNamespace(id=name, tags=its, save=partial(_save, its)) for name, its in tags.items()]
        self.loaded: list[str] = []
        self.removed: list[str] = []

    def get(self, name: str) -> SimpleNamespace:
        found = [image for image in self.there if name in (image.id, *image.tags)]
        if not found:
            raise ImageNotFound(name)
        return found[0]

    def list(self) -> list[SimpleNamespace]:
        return [*self.there, *(SimpleNamespace(id=tag, tags=[tag]) for tag in self.loaded)]

    def load(self, saved: str) -> None:
        self.loaded.append(saved)

    def remove(self, name: str, force: bool) -> None:
        self.removed.append(name)


def _save(tags: list[str], named: str) -> str:
    assert named in tags, "as Docker's client has it"
    return named


@pytest.mark.pure
def test_an_image_is_brought_under_the_tag_that_its_name_stands_for() -> None:
    outer = Images(torch=["mine:1", "torch:latest"], worker=["worker"], digest=["kept:2"])
    inner = Images(old=["old:latest"])
    engines: list[Any] = [SimpleNamespace(images=images) for images in (outer, inner)]
    smoke.bring_images(*engines, ["worker", "torch", "digest"])
    assert inner.loaded == ["worker", "torch:latest", "kept:2"]
    assert inner.removed == ["old"]


@pytest.mark.pure
def test_an_image_without_a_tag_is_refused() -> None:
    client: Any = SimpleNamespace(images=Images(torch=[]))
    with pytest.raises(smoke.SmokeError, match="torch"):
        smoke.tag_of(client, "torch")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[docker.DockerClient]:
    """Return the engine's client. Names are the test's own, since a smoke run may be under way."""
    for constant in ("NAME", "CONTAINER", "VOLUME", "CONTROL_GROUP"):
        monkeypatch.setattr(smoke, constant, "testbed-smoke-test")
    client = engine.connect()
    yield client
    client.volumes.get(smoke.VOLUME).remove()


@pytest.mark.system
def test_the_container_may_do_what_an_engine_needs_and_goes_with_an_interrupt(
    client: docker.DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smoke, "RUNS", tmp_path / "runs")
    image = ensure_worker_image(client)
    client.containers.create(image, name=smoke.CONTAINER, labels={LABEL: smoke.NAME})  # one that a kill left
    with pytest.raises(KeyboardInterrupt), smoke.machine(client, image, tmp_path) as (container, grant):
        allowed = container.attrs["HostConfig"]
        assert allowed["Privileged"] or (allowed["CapAdd"], allowed["ReadonlyPaths"]) == (["ALL"], [])
        assert ("--privileged" in grant.flags) == allowed["Privileged"]
        raise KeyboardInterrupt
    assert not client.containers.list(all=True, filters={"label": f"{LABEL}={smoke.NAME}"})


@pytest.mark.pure
@pytest.mark.parametrize("made", [True, False])
def test_the_text_that_the_worker_image_was_made_with_is_there(
    made: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its hash the container's testbed finds the image that is brought; it can make none without a network."""
    monkeypatch.setattr(documentation, "DOCUMENTATION", tmp_path)
    if made:
        (tmp_path / documentation.INDEX).touch()
    client = MagicMock()
    smoke.start(client, "image", tmp_path)
    binds = client.api.create_container.call_args.kwargs["host_config"]["Binds"]
    found = [bind for bind in binds if "/documentation/" in bind]
    assert found == [f"{tmp_path / name}:{smoke.CACHE}/documentation/{name}:ro" for name in documentation.FILES if made]


@pytest.mark.pure
def test_an_interrupted_run_is_ended_before_its_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`testbed network clean` spares a run that is under way, unless it is told to end all."""
    container = MagicMock(status="running")
    for name in ("remove_containers", "remove_control_groups"):
        monkeypatch.setattr(smoke, name, lambda *_: None)
    monkeypatch.setattr(smoke, "start", lambda *_: (container, MagicMock()))
    monkeypatch.setattr(smoke, "RUNS", tmp_path / "runs")
    with pytest.raises(KeyboardInterrupt), smoke.machine(MagicMock(), "image", tmp_path):
        raise KeyboardInterrupt
    done = [call[0] for call in container.method_calls]
    assert done.index("exec_run") < done.index("stop")
    assert container.exec_run.call_args.args[0][-2:] == ["clean", "--all"]
