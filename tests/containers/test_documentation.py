"""The documentation dataset, made of small Debian packages of the tests' own."""

from __future__ import annotations

import errno
import hashlib
import json
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest

from containers import documentation
from containers.documentation import Package

pytestmark = pytest.mark.local


def package(folder: Path, name: str, pages: dict[str, str]) -> Path:
    """Build a Debian package that holds these pages."""
    tree = folder / f"{name}-tree"
    for path, text in {**pages, "DEBIAN/control": control(name)}.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text, encoding="utf-8")
    archive = folder / f"{name}_1.2-3_all.deb"
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", str(tree), str(archive)], check=True)
    return archive


def control(name: str) -> str:
    return f"Package: {name}\nVersion: 1.2-3\nArchitecture: all\nMaintainer: A <a@example.org>\nDescription: pages\n"


@pytest.fixture
def two_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide two packages, one with two pages; return the folder to write into."""
    made = {
        "one-doc": package(tmp_path, "one-doc", {"usr/b.txt": "Second\tpage.\n", "usr/a.txt": "“First” page.\n"}),
        "two-doc": package(tmp_path, "two-doc", {"usr/deep/c.txt": "Third.\n", "usr/c.html": "<p>not a source</p>"}),
    }
    monkeypatch.setattr(documentation, "_downloaded", lambda name, _: made[name])
    chosen = (Package("one-doc", "usr/*.txt", "Expat"), Package("two-doc", "usr/**/*.txt", "GPL-2.0-only"))
    monkeypatch.setattr(documentation, "PACKAGES", chosen)
    return tmp_path / "out"


def test_the_text_is_the_pages_in_order_and_says_where_it_is_from(two_packages: Path) -> None:
    documentation.prepare(two_packages)
    text = (two_packages / "text.txt").read_bytes()
    assert text == b"First page.\n\nSecondpage.\n\nThird.\n"
    assert json.loads((two_packages / "documentation.json").read_text()) == {
        "sha256": hashlib.sha256(text).hexdigest(),
        "characters": len(text),
        "packages": {
            "one-doc": {"version": "1.2-3", "licence": "Expat"},
            "two-doc": {"version": "1.2-3", "licence": "GPL-2.0-only"},
        },
    }


def test_a_package_without_such_pages_is_refused(two_packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documentation, "PACKAGES", (Package("one-doc", "usr/*.rst", "Expat"),))
    with pytest.raises(SystemExit, match=r"one-doc 1.2-3"):
        documentation.prepare(two_packages)


def test_what_apt_cannot_do_is_said_with_the_remedy() -> None:
    with pytest.raises(SystemExit, match="no-such-program"):
        documentation._run(["no-such-program"])
    with pytest.raises(SystemExit, match="apt-get update"):
        documentation._run(["false"])


def test_a_full_disk_leaves_both_files_as_they_were(two_packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documentation.prepare(two_packages)
    before = {file.name: file.read_bytes() for file in two_packages.iterdir()}
    monkeypatch.setattr(documentation, "PACKAGES", documentation.PACKAGES[:1])
    monkeypatch.setattr(Path, "write_text", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OSError) as failed:
        documentation.prepare(two_packages)
    assert failed.value.errno == errno.ENOSPC
    assert {file.name: file.read_bytes() for file in two_packages.iterdir()} == before
