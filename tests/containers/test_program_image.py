"""The images that programs which are not ours run in: what their writers count on is there."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import docker
import pytest

import testbed
from testbed.emulation.containers import engine, image
from testbed.emulation.containers.program_image import program_image

pytestmark = pytest.mark.system

APART = {"network_mode": "none", "remove": True}

LOOK_ROUND = """
import testbed.sync, torch
from importlib.metadata import version
print(version("wan-testbed"), torch.ones(3).numpy().sum())
"""


@pytest.fixture(scope="module")
def client() -> docker.DockerClient:
    return engine.connect()


def test_programs_find_python_torchrun_numpy_and_the_package(client: docker.DockerClient) -> None:
    tag = program_image(client)
    said = client.containers.run(tag, ["python", "-c", LOOK_ROUND], stderr=True, **APART)
    assert said == f"{testbed.__version__} 3.0\n".encode()
    said = client.containers.run(tag, ["which", "torchrun"], **APART)
    assert said == b"/usr/local/bin/torchrun\n"


def test_what_a_requirements_file_asks_for_is_there_too(
    client: docker.DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of a folder of wheels too, as pip's settings may name one."""
    program_image(client)
    name = f"stranger{os.getpid()}"
    with zipfile.ZipFile(tmp_path / f"{name}-1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "ANSWER = 42\n")
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\nRequires-Dist: numpy\n"
        wheel.writestr(f"{name}-1.2.dist-info/METADATA", metadata)
        wheel.writestr(f"{name}-1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}-1.2.dist-info/RECORD", "")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(f"{name}\n")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    tag = program_image(client, str(requirements))
    try:
        answer = ["python", "-c", f"import {name}, numpy, torch; print({name}.ANSWER)"]
        assert client.containers.run(tag, answer, **APART) == b"42\n"
        assert image.packages_in(client, tag)["python"][name] == "1.2"
        assert program_image(client, str(requirements)) == tag
    finally:
        client.images.remove(tag)
