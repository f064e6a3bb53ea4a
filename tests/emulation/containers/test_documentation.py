"""The prepared documentation: what an image takes of it, and what is said where it is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.emulation.containers import documentation
from testbed.emulation.containers.documentation import DocumentationError

pytestmark = pytest.mark.pure


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where it would lie."""
    monkeypatch.setattr(documentation, "DOCUMENTATION", tmp_path / "documentation")
    (tmp_path / "documentation").mkdir()
    return tmp_path / "documentation"


def test_an_image_has_an_empty_folder_where_none_was_prepared() -> None:
    assert documentation.entries() == {"documentation": None}
    with pytest.raises(DocumentationError, match="`make documentation`"):
        documentation.described()


def test_both_files_go_into_an_image_and_the_index_into_a_manifest(folder: Path) -> None:
    (folder / "documentation.json").write_text(json.dumps({"sha256": "ab", "characters": 2}))
    assert documentation.entries() == {
        "documentation/documentation.json": folder / "documentation.json",
        "documentation/text.txt": folder / "text.txt",
    }
    assert documentation.described() == {"sha256": "ab", "characters": 2}


def test_a_folder_of_data_sets_has_it_where_it_was_prepared(folder: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    documentation.link_into(there)
    assert not list(there.iterdir())
    (folder / "documentation.json").write_text("{}")
    documentation.link_into(there)
    assert (there / "documentation" / "documentation.json").read_text() == "{}"


def test_an_installed_wheel_names_the_program_that_it_has(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documentation, "IS_CHECKOUT", False)
    with pytest.raises(DocumentationError) as refused:
        documentation.described()
    assert f"documentation.py {folder}`" in str(refused.value)
