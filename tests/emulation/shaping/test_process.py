"""The core is compiled when it must be, and says what is missing when it cannot be."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from testbed.emulation.shaping import ShapingError, process
from tests.waiting import until

pytestmark = pytest.mark.local


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "BINARY", tmp_path / "build" / "testbed-shaper")


def test_it_is_built_once_and_again_when_the_source_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "core" / "main.c"
    source.parent.mkdir()
    source.write_text("int main(void) { return 0; }")
    monkeypatch.setattr(process, "SOURCE", source.parent)
    first = process.build_core().stat()
    assert process.build_core().stat().st_ino == first.st_ino
    source.write_text("int main(void) { return 1; }")
    assert process.build_core().stat().st_ino != first.st_ino


def test_without_a_compiler_the_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ShapingError, match="apt-get install gcc"):
        process.build_core()


def test_without_headers_the_packages_and_the_complaint_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "core" / "main.c"
    source.parent.mkdir()
    source.write_text("#include <linux/no_such_header.h>\n")
    monkeypatch.setattr(process, "SOURCE", source.parent)
    with pytest.raises(ShapingError, match=r"(?s)libc6-dev.*no_such_header"):
        process.build_core()


def test_a_folder_that_cannot_be_made_for_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(process, "BINARY", tmp_path / "file" / "testbed-shaper")
    with pytest.raises(ShapingError) as caught:
        process.build_core()
    assert str(tmp_path / "file") in str(caught.value)


def test_a_core_that_may_not_be_executed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that is mounted with noexec."""
    core = tmp_path / "testbed-shaper"
    core.touch(0o644)
    monkeypatch.setattr(process, "build_core", lambda: core)
    with pytest.raises(ShapingError) as caught:
        process.CoreProcess()
    assert str(core) in str(caught.value) and "noexec" in str(caught.value)


def test_a_core_that_its_kernel_cannot_serve_names_the_kernel_that_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "core" / "main.c"
    source.parent.mkdir()
    source.write_text(f"int main(void) {{ return {process.LACKS_EPOLL_PWAIT2}; }}")
    monkeypatch.setattr(process, "SOURCE", source.parent)
    with closing(process.CoreProcess()) as core:
        until(lambda: core.failure() is not None)
        assert "5.11" in str(core.failure())


def test_the_program_says_where_the_core_is_and_nothing_else() -> None:
    command = [sys.executable, "-m", "testbed.emulation.shaping"]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).name == "testbed-shaper"
    assert done.stderr == ""
