"""C sources are compiled only when they must be, and an error says what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed import compiler
from testbed.compiler import CompilerError, compile_c, library

pytestmark = pytest.mark.local


def test_a_library_is_compiled_again_when_its_source_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "PACKAGE", tmp_path)
    monkeypatch.setattr(compiler, "BUILD", tmp_path / "built")
    source = tmp_path / "room" / "sum.c"
    source.parent.mkdir()
    source.write_text("long sum(long a, long b) { return a + b; }")
    assert library("room").sum(2, 3) == 5
    made = tmp_path / "built" / "testbed-room.so"
    first = made.stat().st_ino
    library("room")
    assert made.stat().st_ino == first
    source.write_text("long sum(long a, long b) { return a + b + 1; }")
    library("room")
    second = made.stat().st_ino
    assert second != first
    monkeypatch.setattr(compiler.platform, "machine", lambda: "another")  # which mounts the same folder
    library("room")
    assert made.stat().st_ino != second
    assert sorted(file.name for file in made.parent.iterdir()) == ["testbed-room.sha256", "testbed-room.so"]


def test_without_a_compiler_the_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty.c").write_text("")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompilerError, match="apt-get install gcc libc6-dev"):
        compile_c([tmp_path / "empty.c"], [], tmp_path / "empty")


def test_a_library_that_cannot_be_loaded_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a crash that cut the file short, or on a file system that is mounted with noexec."""
    monkeypatch.setattr(compiler, "BUILD", tmp_path)
    monkeypatch.setattr(compiler, "compile_c", lambda *_: None)
    (tmp_path / "testbed-planning.so").write_bytes(b"\x7fELF")
    with pytest.raises(CompilerError) as caught:
        library("planning")
    assert str(tmp_path / "testbed-planning.so") in str(caught.value)
