"""`make smoke`: its request to the engine, and the removal of its container in any case. CI makes the run itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from containers import smoke
from testbed.emulation.containers import engine
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
