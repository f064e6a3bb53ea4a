"""The worker image: its contents, its restrictions, and when it is made again."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.models.containers import Container

from testbed.emulation.containers import engine, image
from testbed.emulation.containers.fleet import remove_containers
from testbed.emulation.containers.image import ImageError
from testbed.emulation.containers.requirements import canonical, read
from testbed.emulation.label import LABEL
from tests.test_imports import ARROWS

#: As a run starts its workers.
HARDENED = {
    "network_mode": "none",
    "read_only": True,
    "tmpfs": {"/tmp": "size=64m"},
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
}

LOOK_ROUND = """
import json, os, sys
from pathlib import Path
import torch

torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).step()
folder = Path("/usr/share/testbed/digits")
digits = {}
for name, field in json.loads((folder / "digits.json").read_text()).items():
    data = bytearray((folder / field["file"]).read_bytes())
    digits[name] = torch.frombuffer(data, dtype=getattr(torch, field["dtype"])).reshape(field["shape"])
print(json.dumps({
    "uid": os.getuid(),
    "torch": torch.__version__.partition("+")[0],
    "capabilities": Path("/proc/self/status").read_text().partition("CapEff:")[2].split()[0],
    "interfaces": os.listdir("/sys/class/net"),
    "code": sorted(str(p.relative_to("/opt/testbed/testbed")) for p in Path("/opt/testbed/testbed").rglob("*.py")),
    "compiled": len(list(Path("/opt/testbed/testbed").rglob("*.pyc"))),
    "images": digits["images"].tolist(),
    "labels": digits["labels"].tolist(),
    "root is writable": os.access("/", os.W_OK),
    "numpy": "numpy" in sys.modules,
}))
"""

INSTALLED = """
import json
from importlib.metadata import distributions
print(json.dumps({found.metadata["Name"]: found.version for found in distributions(path=["/opt/site"])}))
"""


@pytest.fixture(scope="module")
def client() -> docker.DockerClient:
    return engine.connect()


@pytest.fixture
def checkout(client: docker.DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a copy of the image's inputs, to be changed; images made from it are removed with it."""
    for name in ("containers", "testbed"):
        shutil.copytree(image.ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "requirements.lock"):
        shutil.copy(image.ROOT / name, tmp_path)
    image.ensure_worker_image(client)  # the layers below are shared, and only the real checkout's stay
    for constant, path in (
        ("ROOT", "."),
        ("CONTAINERS", "containers"),
        ("BUILD", "build"),
        ("PACKAGE", "testbed"),
    ):
        monkeypatch.setattr(image, constant, tmp_path / path)
    (tmp_path / "build").mkdir()
    yield tmp_path
    for made in client.images.list(filters={"label": f"{image.CHECKOUT_LABEL}={tmp_path}"}):
        client.images.remove(made.tags[0] if made.tags else str(made.id), force=True)


@pytest.mark.tour
@pytest.mark.system
def test_a_worker_finds_what_it_needs_and_may_do_nothing_else(client: docker.DockerClient) -> None:
    from sklearn.datasets import load_digits

    tag = image.ensure_worker_image(client)
    output = client.containers.run(tag, ["-c", LOOK_ROUND], entrypoint="python3", remove=True, stderr=True, **HARDENED)
    seen = json.loads(output)  # so nothing was printed beside it, no warning of torch's either
    assert seen["uid"] == 10001
    assert seen["torch"] == read()["torch"].version
    assert int(seen["capabilities"], 16) == 0
    assert seen["interfaces"] == ["lo"]
    assert not seen["root is writable"]
    assert not seen["numpy"]

    digits = load_digits()
    assert seen["images"] == (digits.images / 16).tolist()
    assert seen["labels"] == digits.target.tolist()

    assert {"__init__.py", "atomic_file.py", "link.py", "plan.py", "protocol.py", "schema.py"} <= set(seen["code"])
    assert {Path(name).parts[0] for name in seen["code"]} <= {
        *("__init__.py", "atomic_file.py", "errors.py", "link.py", "plan.py", "protocol.py", "schema.py"),
        *("lazy.py", "resources.py", "sockets.py", "sudo.py", "workload.py"),
        *("scheme_autoload.py", "torch_backend.py", "schemes", "sync", "worker"),
    }
    assert seen["compiled"] == len(seen["code"])


@pytest.mark.pure
def test_the_image_has_each_room_that_its_code_imports() -> None:
    """Planning is missing: a scheme imports it only where it plans, in the controller."""
    packed = {Path(pattern).parts[0].removesuffix(".py") for pattern in image.WORKER_CODE} - {"__init__"}
    assert set().union(*(ARROWS[room] for room in packed)) - packed == {"planning"}


@pytest.mark.system
def test_the_image_starts_the_worker_as_nobody(client: docker.DockerClient) -> None:
    config = client.images.get(image.ensure_worker_image(client)).attrs["Config"]
    assert config["Entrypoint"] == ["python3", "-m", "testbed.worker"]
    assert config["User"] == "worker:worker"
    assert config["Labels"][image.KIND_LABEL] == "worker"


@pytest.mark.system
def test_only_a_change_makes_it_again_and_the_old_one_goes(client: docker.DockerClient, checkout: Path) -> None:
    told: list[str] = []
    (checkout / "testbed" / "link.py").write_text("ANSWER = 1\n")
    first = image.ensure_worker_image(client, told.append)
    assert any("worker image" in line for line in told)
    assert not any("base" in line or "torch" in line for line in told)

    told.clear()
    os.utime(checkout / "testbed" / "link.py", (0, 0))
    (checkout / "testbed" / "emulation" / "image.py").write_text("# not in the image\n")
    assert image.ensure_worker_image(client, told.append) == first
    assert told == []

    (checkout / "testbed" / "link.py").write_text("ANSWER = 2\n")
    second = image.ensure_worker_image(client, told.append)
    assert second != first
    answer = ["-c", "import testbed.link; print(testbed.link.ANSWER)"]
    assert client.containers.run(second, answer, entrypoint="python3", remove=True, **HARDENED) == b"2\n"
    made = client.images.list(filters={"label": f"{image.CHECKOUT_LABEL}={checkout}"})
    assert [name for one in made for name in one.tags] == [second]


@pytest.mark.system
def test_the_image_tells_what_it_holds_and_its_tags_are_the_hash_of_that(client: docker.DockerClient) -> None:
    tag = image.ensure_worker_image(client)
    held = image.packages_in(client, tag)
    listing = ["dpkg-query", "--show", "--showformat=${Package}=${Version}\n"]
    listed = client.containers.run(tag, listing[1:], entrypoint=listing[0], remove=True, **HARDENED).decode().split()
    assert held["debian"] == dict(line.split("=", 1) for line in listed)
    found = json.loads(client.containers.run(tag, ["-c", INSTALLED], entrypoint="python3", remove=True, **HARDENED))
    assert held["python"] == {canonical(name): version for name, version in found.items()}

    base = image.base_recipe()
    assert image.find(client, "base", base) == f"testbed-base:{image.hash_of([base, ' '.join(sorted(listed))])}"


@pytest.mark.system
def test_what_it_is_made_of_finds_it_where_the_images_below_are_not(
    client: docker.DockerClient, checkout: Path
) -> None:
    """An engine may have the worker image alone, without the images below it."""
    (checkout / "testbed" / "link.py").write_text("ANSWER = 1\n")
    tag = image.ensure_worker_image(client)
    assert image.find(client, "worker", image._recipes(client, None, print).worker) == tag
    lock = checkout / "requirements.lock"
    lock.write_text(lock.read_text().replace(read()["torch"].hashes[0], "0" * 64))
    changed = image._recipes(client, None, print)
    assert image.find(client, "torch", changed.torch) is None
    assert image.find(client, "worker", changed.worker) is None


@pytest.mark.system
def test_a_wheel_of_another_hash_is_refused_by_name(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = read()["torch"]
    forged = checkout / f"torch-{torch.version}-py3-none-any.whl"
    forged.write_bytes(b"not what the lock was made from")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(checkout))
    with pytest.raises(ImageError, match=rf"(?s)torch=={torch.version}"):
        image.wheelhouse("3.11", [torch])


@pytest.mark.system
def test_a_container_keeps_a_superseded_image(client: docker.DockerClient, checkout: Path) -> None:
    (checkout / "testbed" / "link.py").write_text("ANSWER = 1\n")
    first = image.ensure_worker_image(client)
    container = client.containers.create(first, labels={"testbed.test": "superseded"}, network_mode="none")
    try:
        (checkout / "testbed" / "link.py").write_text("ANSWER = 2\n")
        image.ensure_worker_image(client)
        assert image.exists(client, first)
    finally:
        container.remove()


@pytest.mark.system
def test_a_base_with_torch_needs_no_wheels(
    client: docker.DockerClient, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = image._recipes(client, None, print)
    torch = image.find(client, "torch", ours.torch)
    assert torch is not None
    monkeypatch.setenv("BASE_IMAGE", torch)
    tag = image.ensure_worker_image(client)
    assert tag != image.find(client, "worker", ours.worker)
    assert not list((checkout / "build").glob("wheelhouse-*/torch-*"))
    assert client.containers.run(tag, ["-c", "import torch"], entrypoint="python3", remove=True, **HARDENED) == b""


@pytest.mark.system
def test_a_probe_s_container_is_found_by_its_label_and_goes_with_an_interrupt(
    client: docker.DockerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []

    def interrupted(container: Container, **_: Any) -> None:
        found.extend(one.id for one in client.containers.list(filters={"label": f"{LABEL}={network}"}, all=True))
        raise KeyboardInterrupt

    tag = image.ensure_worker_image(client)
    monkeypatch.setattr(Container, "wait", interrupted)
    monkeypatch.setattr(image, "PROBE_NETWORK", f"t{os.getpid()}-probe")
    network = image.probe_network()
    with pytest.raises(KeyboardInterrupt):
        image.probe_python(client, tag)
    assert len(found) == 1
    assert remove_containers(client, network) == []


@pytest.mark.system
def test_a_base_that_is_not_to_be_had(client: docker.DockerClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BASE_IMAGE", "localhost:1/no-such-image:1")
    with pytest.raises(ImageError, match=r"(?s)BASE_IMAGE.*localhost:1/no-such-image:1"):
        image.ensure_worker_image(client)


@pytest.mark.system
def test_a_build_that_fails_is_quoted(client: docker.DockerClient, checkout: Path) -> None:
    dockerfile = checkout / "containers" / "worker.Dockerfile"
    dockerfile.write_text(dockerfile.read_text() + "RUN echo so far so good && no-such-command\n")
    with pytest.raises(ImageError, match=r"(?s)testbed-worker.*so good"):
        image.ensure_worker_image(client)


@pytest.mark.local
def test_a_command_that_fails_is_quoted_with_its_remedy() -> None:
    with pytest.raises(ImageError, match=r"(?s)exit code 7.*went wrong.*to do"):
        image.command(["sh", "-c", "echo what went wrong >&2; exit 7"], "what to do")
