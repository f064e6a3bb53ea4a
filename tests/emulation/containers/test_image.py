"""What is removed of images that were made before."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError

from testbed.emulation.containers import image
from testbed.emulation.containers.image import KIND_LABEL, digits_folder, remove_superseded

pytestmark = pytest.mark.pure


def made(number: str, kind: str, *tags: str) -> dict[str, Any]:
    """As an engine lists an image."""
    return {"Id": f"sha256:{number}", "Labels": {KIND_LABEL: kind}, "RepoTags": list(tags) or None}


def removed(listed: list[dict[str, Any]], refused: int = 0) -> list[str]:
    """What of these is asked to be removed, of a checkout that wants worker:2 and no program."""
    asked: list[str] = []

    def remove(name: str) -> None:
        asked.append(name)
        if refused:
            raise APIError("refused", response=SimpleNamespace(status_code=refused))  # type: ignore[arg-type]

    client: Any = SimpleNamespace(api=SimpleNamespace(images=lambda **_: listed), images=SimpleNamespace(remove=remove))
    remove_superseded(client, {"worker": "worker:2", "program": None})
    return asked


def test_what_a_checkout_no_longer_wants_goes_by_its_tags_or_without_any_by_its_id() -> None:
    listed = [
        made("1", "worker", "worker:1", "worker:old"),
        made("2", "worker", "worker:2"),
        made("3", "worker", "<none>:<none>"),
        made("4", "program"),
        made("5", "base", "base:1"),
    ]
    assert removed(listed) == ["worker:1", "worker:old", "sha256:3", "sha256:4"]


@pytest.mark.parametrize("refused", [404, 409])
def test_what_has_gone_meanwhile_or_is_in_use_is_no_error(refused: int) -> None:
    assert removed([made("1", "worker", "worker:1"), made("4", "program")], refused) == ["worker:1", "sha256:4"]


def test_what_the_engine_can_t_do_is() -> None:
    with pytest.raises(APIError):
        removed([made("1", "worker", "worker:1")], 500)


def test_digits_that_another_process_made_meanwhile_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"digits-{image.hash_of([image.hash_of_file(image.CONTAINERS / 'digits.py')])}"

    def bake(words: list[str], remedy: str) -> None:
        for folder, file in ((Path(words[-1]), "ours"), (tmp_path / name, "theirs")):
            folder.mkdir()
            (folder / file).write_text("")

    monkeypatch.setattr(image, "BUILD", tmp_path)
    monkeypatch.setattr(image, "command", bake)
    assert [file.name for file in digits_folder().iterdir()] == ["theirs"]
