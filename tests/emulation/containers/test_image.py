"""Images are built and removed beside other processes that do so too."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError, BuildError

from testbed.emulation.containers import image
from testbed.emulation.containers.image import (
    BUILD_ATTEMPTS,
    KIND_LABEL,
    ImageError,
    build_image,
    digits_folder,
    remove_superseded,
)

pytestmark = pytest.mark.pure


def made(number: str, kind: str, *tags: str) -> dict[str, Any]:
    """As an engine lists an image."""
    return {"Id": f"sha256:{number}", "Labels": {KIND_LABEL: kind}, "RepoTags": list(tags) or None}


def removed(listed: list[dict[str, Any]], refused: int = 0) -> list[str]:
    """Return the listed images whose removal a checkout asks for that wants testbed-worker:2 and no program image."""
    asked: list[str] = []

    def remove(name: str) -> None:
        asked.append(name)
        if refused:
            raise APIError("refused", response=SimpleNamespace(status_code=refused))  # type: ignore[arg-type]

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


@pytest.mark.parametrize("refused", [404, 409])
def test_what_has_gone_meanwhile_or_is_in_use_is_no_error(refused: int) -> None:
    assert removed([made("1", "worker", "testbed-worker:1"), made("4", "program")], refused) == [
        "testbed-worker:1",
        "sha256:4",
    ]


def test_what_the_engine_can_t_do_is() -> None:
    with pytest.raises(APIError):
        removed([made("1", "worker", "testbed-worker:1")], 500)


def test_digits_that_another_process_made_meanwhile_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"digits-{image.hash_of([image.hash_of_file(image.CONTAINERS / 'digits.py')])}"

    def bake(words: list[str], remedy: str) -> None:
        for folder, file in ((Path(words[-1]), "ours"), (tmp_path / name, "theirs")):
            folder.mkdir()
            (folder / file).write_text("")

    monkeypatch.setattr(image, "BUILD", tmp_path)
    monkeypatch.setattr(image, "command", bake)
    assert [file.name for file in digits_folder().iterdir()] == ["theirs"]


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
