"""Images are built and removed beside other processes that do so too."""

from __future__ import annotations

import fcntl
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError, BuildError
from requests.exceptions import ReadTimeout

from testbed.emulation.containers import engine, image
from testbed.emulation.containers.image import (
    BUILD_ATTEMPTS,
    KIND_LABEL,
    ImageError,
    build_image,
    digits_folder,
    remove_superseded,
)
from testbed.emulation.containers.limits import PIDS, RESTRICTIONS
from testbed.trace.text import hash_of_file

pytestmark = pytest.mark.pure


def made(number: str, kind: str, *tags: str) -> dict[str, Any]:
    """As an engine lists an image."""
    return {"Id": f"sha256:{number}", "Labels": {KIND_LABEL: kind}, "RepoTags": list(tags) or None}


def removed(listed: list[dict[str, Any]], refused: int = 0, why: str = "refused") -> list[str]:
    """Return the listed images whose removal a checkout asks for that wants testbed-worker:2 and no program image."""
    asked: list[str] = []

    def remove(name: str) -> None:
        asked.append(name)
        if refused:
            raise APIError(why, SimpleNamespace(status_code=refused), why)  # type: ignore[arg-type]

    client: Any = SimpleNamespace(api=SimpleNamespace(images=lambda **_: listed), images=SimpleNamespace(remove=remove))
    remove_superseded(client, {"worker": "testbed-worker:2", "program": None})
    return asked


def test_what_a_checkout_no_longer_wants_goes_by_its_tags_or_without_any_by_its_id() -> None:
    listed = [
        made("1", "worker", "testbed-worker:1", "testbed-worker:old"),
        made("2", "worker", "testbed-worker:2"),
        made("3", "worker", "<none>:<none>"),
        made("4", "program"),
        made("5", "base", "testbed-base:1"),
        made("6", "worker", "testbed-worker:6", "mine:latest"),
        made("7", "worker", "mine:older"),
    ]
    assert removed(listed) == ["testbed-worker:1", "testbed-worker:old", "sha256:3", "sha256:4", "testbed-worker:6"]


def test_the_worker_s_code_has_all_modules_that_it_imports_of_the_package() -> None:
    code = image._worker_code()
    imported = re.compile(r"^from (testbed(?:\.\w+)*) import", re.MULTILINE)  # not those of functions
    named = {name.replace(".", "/") for path in code.values() for name in imported.findall(path.read_text())}
    assert "testbed/errors" in named
    assert [name for name in sorted(named) if not {f"{name}.py", f"{name}/__init__.py"} & code.keys()] == []


def test_only_images_of_the_same_file_are_superseded() -> None:
    own = {"testbed.file": "a"}
    listed = [made(str(number), "requirements", f"testbed-requirements:{number}") for number in range(3)]
    listed.append(made("3", "requirements", "testbed-requirements:3"))  # of an earlier version
    for image_, labels in zip(listed, (own, own, {"testbed.file": "b"}, {}), strict=True):
        image_["Labels"] |= labels
    asked: list[str] = []
    client: Any = SimpleNamespace(
        api=SimpleNamespace(images=lambda **_: listed), images=SimpleNamespace(remove=asked.append)
    )
    remove_superseded(client, {"requirements": "testbed-requirements:1"}, own)
    assert asked == ["testbed-requirements:0", "testbed-requirements:3"]


def test_no_image_is_removed_while_another_process_builds_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image that was built has no tag yet when the engine lists it first."""
    held: list[str] = []

    def is_locked(call: str) -> Any:
        def checked(*_: Any, **__: Any) -> list[Any]:
            with (tmp_path / image.IMAGES_LOCK).open("w") as lock, pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held.append(call)
            return [made("1", "worker")]

        return checked

    monkeypatch.setattr(image, "BUILD", tmp_path)
    images = SimpleNamespace(build=is_locked("build"), remove=is_locked("remove"))
    client: Any = SimpleNamespace(api=SimpleNamespace(images=is_locked("list")), images=images)
    build_image(client, "worker", "recipe", [], {}, {})
    remove_superseded(client, {"worker": "testbed-worker:2"})
    assert held == ["build", "list", "remove"]


@pytest.mark.parametrize(
    ("refused", "why"), [(404, "no such image"), (409, "conflict"), (500, "unrecognized image ID sha256:4")]
)
def test_what_has_gone_meanwhile_or_is_in_use_is_no_error(refused: int, why: str) -> None:
    assert removed([made("1", "worker", "testbed-worker:1"), made("4", "program")], refused, why) == [
        "testbed-worker:1",
        "sha256:4",
    ]


def test_what_the_engine_can_t_do_is() -> None:
    with pytest.raises(APIError):
        removed([made("1", "worker", "testbed-worker:1")], 500)


def test_digits_that_another_process_made_meanwhile_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"digits-{image.hash_of([hash_of_file(image.CONTAINERS / 'digits.py')])}"

    def bake(words: list[str], remedy: str) -> None:
        for folder, file in ((Path(words[-1]), "ours"), (tmp_path / name, "theirs")):
            folder.mkdir()
            (folder / file).write_text("")

    monkeypatch.setattr(image, "BUILD", tmp_path)
    monkeypatch.setattr(image, "command", bake)
    assert [file.name for file in digits_folder().iterdir()] == ["theirs"]


def test_wheels_are_downloaded_by_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(words: list[str], remedy: str) -> None:
        folder = Path(words[words.index("--dest") + 1])
        with folder.with_suffix(".lock").open("w") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (folder / "msgspec-1-py3-none-any.whl").write_text("")

    monkeypatch.setattr(image, "BUILD", tmp_path)
    monkeypatch.setattr(image, "command", download)
    wanted = [package for package in image.locked("sync") if package.name == "msgspec"]
    assert [*image.wheelhouse("3.11", wanted)] == ["wheelhouse", "wheelhouse/msgspec-1-py3-none-any.whl"]


def test_wheels_for_an_earlier_lock_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "BUILD", tmp_path)
    monkeypatch.setattr(image, "command", lambda words, remedy: None)
    present = hash_of_file(image.ROOT / "requirements.lock")
    for name, filled_for in (("earlier", "0" * 64), ("filling", "0" * 64), ("present", present)):
        (tmp_path / f"wheelhouse-{name}").mkdir()
        (tmp_path / f"wheelhouse-{name}" / image.FILLED_FOR).write_text(filled_for)
    (tmp_path / "wheelhouse-unknown").mkdir()
    wanted = [package for package in image.locked("sync") if package.name == "msgspec"]
    with (tmp_path / "wheelhouse-filling.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for _ in range(2):
            image.wheelhouse("3.11", wanted)
    folders = {path.name for path in tmp_path.iterdir() if path.is_dir()} - {"wheelhouse-filling", "wheelhouse-present"}
    assert [(tmp_path / own / "requirements.txt").exists() for own in folders] == [True]


def test_a_base_is_made_by_the_proxies_of_apt_s_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environments: list[dict[str, str]] = []

    def run(words: list[str], env: dict[str, str] | None = None, **_: Any) -> SimpleNamespace:
        if words[0] == "apt-config":
            return SimpleNamespace(stdout="http_proxy='http://proxy.example:3128/'\nhttps_proxy='DIRECT'\n")
        environments.append(env or {})
        Path(words[1]).with_suffix(".packages").write_text("python3=3.11\n")
        return SimpleNamespace(returncode=0, stdout="")

    monkeypatch.setattr(image, "BUILD", tmp_path)
    monkeypatch.setattr(image.subprocess, "run", run)
    monkeypatch.setenv("https_proxy", "http://other.example:3128/")
    client: Any = SimpleNamespace(images=SimpleNamespace(get=lambda tag: tag))
    image.import_base(client, "base", "recipe")
    (environment,) = environments
    assert environment["http_proxy"] == "http://proxy.example:3128/"
    assert environment["https_proxy"] == "http://other.example:3128/"


def built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failures: list[str]) -> int:
    """Build an image on an engine that fails with these texts first. Returns how often the build was asked for."""
    contexts: list[bytes] = []

    def build(fileobj: Any, **_: Any) -> None:
        contexts.append(fileobj.read())
        if failures:
            raise BuildError(failures.pop(0), [])

    monkeypatch.setattr(image, "BUILD", tmp_path)
    client: Any = SimpleNamespace(images=SimpleNamespace(build=build))
    build_image(client, "worker", "recipe", [], {}, {})
    assert len(set(contexts)) == 1  # the whole context each time
    return len(contexts)


def test_the_folder_of_builds_is_made_where_it_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An installed package keeps builds in a folder of its version, in a cache that nothing else may have made."""
    assert built(monkeypatch, tmp_path / "context" / "1.0", []) == 1
    monkeypatch.setattr(image, "BUILD", tmp_path / "packages" / "1.0")
    client: Any = Probed(b"{}")
    image.packages_in(client, "theirs:1")
    assert list(image.BUILD.glob("packages-*.json"))
    monkeypatch.setattr(image, "BUILD", tmp_path / "digits" / "1.0")
    monkeypatch.setattr(image, "command", lambda words, remedy: Path(words[-1]).mkdir())
    assert digits_folder().is_dir()


GONE = "failed to get digest sha256:c9317: open /var/lib/docker/image/overlay2/imagedb/content/c9317: no such file"


@pytest.mark.parametrize(
    "gone",
    [
        GONE,
        "invalid from flag value install: No such image: sha256:719e4",
        "failed to export image: failed to set parent sha256:b720f: unknown parent image ID sha256:b720f",
    ],
)
def test_a_build_is_made_again_where_another_process_removed_its_layer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gone: str
) -> None:
    assert built(monkeypatch, tmp_path, [gone] * (BUILD_ATTEMPTS - 1)) == BUILD_ATTEMPTS
    with pytest.raises(ImageError):
        built(monkeypatch, tmp_path, [gone] * BUILD_ATTEMPTS)


def test_a_build_that_fails_by_itself_is_not_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failures = ["pip found no such package", GONE]
    with pytest.raises(ImageError):
        built(monkeypatch, tmp_path, failures)
    assert failures == [GONE]


class Probed:
    """An engine with one image of somebody else, whose `python3` prints `output`.

    `calls` has the arguments that create, wait for and remove its container.
    """

    def __init__(
        self,
        output: bytes = b"{}",
        failure: Exception | None = None,
        volumes: tuple[str, ...] = (),
        labels: Mapping[str, str] = MappingProxyType({}),
        tag: str = "theirs:1",
    ) -> None:
        self.calls: dict[str, dict[str, Any]] = {}
        self._output, self._failure = output, failure
        attrs = {"Config": {"Volumes": {each: {} for each in volumes} or None}}
        found = SimpleNamespace(id="sha256:0123", labels=labels, tags=[tag], attrs=attrs)
        self.images = SimpleNamespace(get=lambda _: found)
        self.containers = SimpleNamespace(create=self._create)

    def _create(self, _: str, **settings: Any) -> Any:
        self.calls["create"] = settings
        return SimpleNamespace(
            start=lambda: None,
            wait=self._wait,
            logs=lambda **_: self._output,
            remove=lambda **given: self.calls.update(remove=given),
        )

    def _wait(self, **given: Any) -> dict[str, int]:
        self.calls["wait"] = given
        if self._failure is not None:
            raise self._failure
        return {"StatusCode": 0}


def test_a_probe_has_a_worker_s_restrictions_and_leaves_no_volume() -> None:
    client: Any = Probed(b"printed", volumes=("/data/",))
    assert image.python_output(client, "theirs:1", "") == b"printed"
    made = client.calls["create"]
    assert {name: made[name] for name in RESTRICTIONS} == dict(RESTRICTIONS)
    assert made["mem_limit"] == made["memswap_limit"] == image.PROBE_BYTES
    assert made["pids_limit"] == PIDS and made["log_config"]["Config"]["max-file"]
    assert set(made["tmpfs"]) == {"/tmp", "/data"}
    assert client.calls["wait"] == {"timeout": image.PROBE_S}
    assert client.calls["remove"] == {"force": True, "v": True}


@pytest.mark.parametrize("failure", [ReadTimeout("timed out"), engine.EngineGoneError("timed out")])
def test_the_packages_of_an_image_whose_python_does_not_end_are_unknown_for_now(
    failure: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(image, "BUILD", tmp_path)
    client: Any = Probed(failure=failure)
    with pytest.raises(engine.EngineError) as caught:
        image.python_output(client, "theirs:1", "")
    assert type(caught.value) is engine.EngineError
    assert client.calls["remove"]["force"]
    assert image.packages_in(client, "theirs:1") == {"debian": {}, "python": {}}
    assert not list(tmp_path.iterdir()), "the image is asked again"


@pytest.mark.parametrize(
    ("output", "known"),
    [
        (b"", {}),
        (b"[]", {}),
        (b'"x"', {}),
        (b'{"python": ["torch"]}', {}),
        (b"[" * 100_000, {}),
        (b'{"python": {"torch": "2.6"}, "other": {}}', {"torch": "2.6"}),
    ],
)
def test_the_packages_of_an_image_are_unknown_where_its_python_prints_anything_else(
    output: bytes, known: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(image, "BUILD", tmp_path)
    client: Any = Probed(output)
    assert image.packages_in(client, "theirs:1") == {"debian": {}, "python": known}


@pytest.mark.parametrize(
    ("kind", "tag", "known"),
    [
        ("program", "testbed-program:0", {"torch": "2.6"}),
        ("program", "mine:1", {"mine": "1.0"}),
        ("dockerfile", "testbed-dockerfile:0", {"mine": "1.0"}),
    ],
)
def test_labels_that_an_image_inherits_do_not_tell_its_packages(
    kind: str, tag: str, known: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(image, "BUILD", tmp_path)
    labels = {image.KIND_LABEL: kind, image.RECIPE_LABEL: "x", image.PACKAGES_LABELS["python"]: "torch=2.6"}
    client: Any = Probed(b'{"python": {"mine": "1.0"}}', labels=labels, tag=tag)
    assert image.packages_in(client, tag)["python"] == known
