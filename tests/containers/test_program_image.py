"""The images in which users' programs run have what such programs need."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import docker
import pytest

import testbed
from testbed.emulation.containers import engine, image
from testbed.emulation.containers.program_image import program_image
from testbed.spec.errors import SpecError

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
    assert "numpy" in image.packages_in(client, tag)["python"]
    said = client.containers.run(tag, ["python", "-c", LOOK_ROUND], stderr=True, **APART)
    assert said == f"{testbed.__version__} 3.0\n".encode()
    said = client.containers.run(tag, ["which", "torchrun"], **APART)
    assert said == b"/usr/local/bin/torchrun\n"


def _write_wheel(folder: Path, name: str, version: str) -> Path:
    file = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr(f"{name}.py", "ANSWER = 42\n")
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: numpy\n"
        wheel.writestr(f"{name}-{version}.dist-info/METADATA", metadata)
        head = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{name}-{version}.dist-info/WHEEL", head)
        wheel.writestr(f"{name}-{version}.dist-info/RECORD", "")
    return file


def test_what_a_requirements_file_asks_for_is_there_too(
    client: docker.DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packages may also come from a folder of wheels that pip's settings name."""
    program_image(client)
    name = f"stranger{os.getpid()}"
    _write_wheel(tmp_path, name, "1.2")
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


#: A build backend that lies in the project itself, and so needs nothing from an index.
BACKEND = """
import os, shutil, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "NAME-VERSION-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.write("NAME.py")
        about = "NAME-VERSION.dist-info/"
        wheel.writestr(about + "METADATA", "Metadata-Version: 2.1\\nName: NAME\\nVersion: VERSION\\n")
        wheel.writestr(about + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(about + "RECORD", "")
    return name
"""


def test_a_project_and_nested_files_are_made_again_when_they_change(
    client: docker.DockerClient, tmp_path: Path
) -> None:
    name = f"nested{os.getpid()}"
    project = tmp_path / "below" / "project"
    project.mkdir(parents=True)
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (project / "backend.py").write_text(BACKEND.replace("NAME", name).replace("VERSION", "1"))
    (tmp_path / "below" / "base.txt").write_text("-e ./project\n")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("-r below/base.txt\n")
    tags = []
    try:
        for answer in (1, 2):
            (project / f"{name}.py").write_text(f"print({answer})\n")
            tags.append(program_image(client, str(requirements)))
            assert client.containers.run(tags[-1], ["python", "-c", f"import {name}"], **APART) == b"%d\n" % answer
            assert program_image(client, str(requirements)) == tags[-1], "found again"
        assert sorted(path.name for path in project.iterdir()) == sorted(["backend.py", f"{name}.py", "pyproject.toml"])
    finally:
        for tag in tags:
            image.remove_unused(client, tag)


def test_names_that_are_not_pinned_stay_until_they_are_renewed(
    client: docker.DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"moving{os.getpid()}"
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(f"{name}\n")
    tags = []
    try:
        _write_wheel(tmp_path, name, "1.2")
        tags.append(program_image(client, str(requirements)))
        _write_wheel(tmp_path, name, "1.3")
        assert program_image(client, str(requirements)) == tags[0]
        tags.append(program_image(client, str(requirements), renew=True))
        assert program_image(client, str(requirements)) == tags[1], "from then on, whoever asks has that"
        found = [image.record(client, tags[1])]
        assert found[0]["packages"]["python"][name] == "1.3"
        assert {"torch", "msgspec"} <= found[0]["packages"]["python"].keys(), "those below it are named too"
        assert found[0]["built"].startswith("20")
    finally:
        for tag in tags:
            image.remove_unused(client, tag)


def test_a_dockerfile_s_folder_names_it_and_its_packages_are_known(client: docker.DockerClient, tmp_path: Path) -> None:
    usual = program_image(client)
    (tmp_path / "Dockerfile").write_text(f"FROM {usual}\nCOPY given /given\nUSER root\nRUN cat /proc/uptime > /made\n")
    said = []
    try:
        for given, renew in (("1", False), ("1", False), ("2", False), ("2", True)):
            (tmp_path / "given").write_text(given)
            tag = program_image(client, str(tmp_path), renew=renew)
            said.append(client.containers.run(tag, ["cat", "/given", "/made"], **APART))
        assert said[0] == said[1], "the engine finds it again"
        assert len({*said}) == 3, "a file of the folder counts, and so does --renew-image"
        assert "torch" in image.record(client, tag)["packages"]["python"]
        kept = client.containers.create(tag, ["cat", "/given"], network_mode="none")
        try:
            (tmp_path / "given").write_text("3")
            newest = program_image(client, str(tmp_path))
            assert newest != tag and client.images.get(tag).id == tag, "a network keeps the image that it began with"
        finally:
            kept.remove()
        client.images.remove(newest)
    finally:
        client.images.remove(tag)


@pytest.mark.parametrize("wanted", [".", "", "..", "/", "a b", "x?y", "A", "x" * 5000, "none-such-image"])
def test_what_is_no_image_is_bad_input(
    wanted: str, client: docker.DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(SpecError) as raised:
        program_image(client, wanted)
    assert raised.value.fields == ("image",)


WRONG = {
    "binary": bytes(range(256)),
    "empty": b"",
    "UTF-16": "FROM scratch\n".encode("utf-16"),
    "no Dockerfile": b"FORM scratch\n",
}


@pytest.mark.parametrize("what", WRONG)
def test_a_file_that_is_no_dockerfile_is_bad_input(what: str, client: docker.DockerClient, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_bytes(WRONG[what])
    with pytest.raises(SpecError) as raised:
        program_image(client, str(tmp_path))
    assert raised.value.file == tmp_path / "Dockerfile"
