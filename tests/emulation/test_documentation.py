"""The prepared documentation: what an image takes of it, and what is said where it is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.emulation import documentation
from testbed.emulation.documentation import DocumentationError

pytestmark = pytest.mark.unit


def test_an_image_has_an_empty_folder_where_none_was_prepared(tmp_path: Path) -> None:
    assert documentation.entries(tmp_path) == {"documentation": None}
    with pytest.raises(DocumentationError, match="`make documentation`"):
        documentation.described(tmp_path)


def test_both_files_go_into_an_image_and_the_index_into_a_manifest(tmp_path: Path) -> None:
    (tmp_path / "documentation.json").write_text(json.dumps({"sha256": "ab", "characters": 2}))
    assert documentation.entries(tmp_path) == {
        "documentation/documentation.json": tmp_path / "documentation.json",
        "documentation/text.txt": tmp_path / "text.txt",
    }
    assert documentation.described(tmp_path) == {"sha256": "ab", "characters": 2}
