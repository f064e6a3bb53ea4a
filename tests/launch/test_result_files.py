"""Copies of the files that programs leave in their containers, from trees that this test makes."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.emulation.process import ProcessIdentity
from testbed.launch.result_files import MOST_DEPTH, CopiedFiles, _take, describe_copied, empty_folder, has_own_mounts

pytestmark = pytest.mark.local


@pytest.fixture
def left(tmp_path: Path) -> Path:
    left = tmp_path / "left"
    for name in ("a/b/kept.txt", "runs/model.pt", "sub/__pycache__/x.pyc", "sub/log"):
        (left / name).parent.mkdir(parents=True, exist_ok=True)
        (left / name).write_text(name)
    return left


def take(root: Path, target: Path, kept: CopiedFiles) -> None:
    descriptor = os.open(root, os.O_RDONLY)
    try:
        _take(descriptor, target, kept)
    finally:
        os.close(descriptor)


def chain(root: Path, name: str, depth: int) -> None:
    """Make folders of one name within one another, which no path leads to, and a file in the last one."""
    folder = os.open(root, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=folder)
        below = os.open(name, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(os.open("deep", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
    os.close(folder)


def files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_plain_files_are_copied_without_caches_and_what_is_left_out_is_named(left: Path, tmp_path: Path) -> None:
    (left / "latest").symlink_to("a/b/kept.txt")
    (left / "etc").symlink_to("/etc")
    os.mkfifo(left / "sub/pipe")
    os.mknod(left / "removed", stat.S_IFCHR, os.makedev(0, 0))  # as an overlay marks a file that is gone
    with (left / "holes").open("wb") as file:
        file.truncate(1 << 43)
    kept = CopiedFiles()
    take(left, tmp_path / "out", kept)
    copied = files(tmp_path / "out")
    assert copied == {name: name for name in ("a/b/kept.txt", "runs/model.pt", "sub/log")}
    assert (kept.files, kept.size) == (3, sum(map(len, copied)))
    assert sorted(name.split()[0] for name in kept.left_out) == ["etc", "holes", "latest", "sub/pipe"]


def test_a_folder_that_another_program_removes_meanwhile_does_not_end_the_copy(
    left: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = os.fwalk

    def removing(top: str, dir_fd: int) -> Iterator[tuple[str, list[str], list[str], int]]:
        for found in walk(top, dir_fd=dir_fd):
            if found[0] == top:
                shutil.rmtree(left / "sub")
            yield found

    monkeypatch.setattr(os, "fwalk", removing)
    kept = CopiedFiles()
    take(left, tmp_path / "out", kept)
    assert files(tmp_path / "out") == {name: name for name in ("a/b/kept.txt", "runs/model.pt")}
    assert kept.left_out == []


def test_names_of_any_bytes_and_any_depth_do_not_end_the_copy(left: Path, tmp_path: Path) -> None:
    (left / os.fsdecode(b"caf\xe9")).symlink_to("a")
    chain(left, "d" * 250, 20)  # 5,000 bytes, where a path has 4,096 at most
    kept = CopiedFiles()
    take(left, tmp_path / "out", kept)
    assert kept.files == 3
    assert sorted(name[:3] for name in kept.left_out) == ["caf", "ddd"]
    assert all(name.encode() for name in kept.left_out)


def test_a_chain_of_thousands_of_folders_is_copied_to_a_depth_and_removed(left: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("kept")
    chain(left, "d", 2000)
    try:
        bottom = left.joinpath(*["d"] * MOST_DEPTH)
        (bottom / "file").write_text("copied")
        (bottom / "link").symlink_to(elsewhere)
        kept = CopiedFiles()
        take(left, tmp_path / "out", kept)
        assert kept.files == 4
        assert {name.rpartition("/")[2]: name.count("d/") for name in kept.left_out} == {
            "d (too deep)": MOST_DEPTH,
            "link (a link)": MOST_DEPTH,
        }
    finally:
        (left / "link").symlink_to(elsewhere)
        descriptor = os.open(left, os.O_RDONLY)
        empty_folder(descriptor)
        os.close(descriptor)
    assert list(left.iterdir()) == []
    assert files(elsewhere) == {"kept": "kept"}


def test_files_of_two_places_do_not_overwrite_each_other(left: Path, tmp_path: Path) -> None:
    out, kept = tmp_path / "out", CopiedFiles()
    take(left, out, kept)
    other = tmp_path / "other"
    other.mkdir()
    (other / "runs").write_text("a file where a folder is")
    (other / "a/b/kept.txt").mkdir(parents=True)
    (other / "a/b/kept.txt/deep").write_text("a folder where a file is")
    (other / "new").write_text("new")
    before = files(out)
    take(other, out, kept)
    assert files(out) == before | {
        "work/runs": "a file where a folder is",
        "work/a/b/kept.txt/deep": "a folder where a file is",
        "new": "new",
    }
    assert kept.files == 6


def test_what_was_kept_is_said_and_nothing_where_nothing_was() -> None:
    out = Path("runs/x/out")
    assert list(describe_copied({}, out)) == list(describe_copied({"a": CopiedFiles()}, out)) == []
    said, left_out = describe_copied(
        {"a": CopiedFiles(2, 1_500_000), "b": CopiedFiles(1, 0, ["x (a link)", "y (a link)"])}, out
    )
    assert said.startswith("3 files") and "1.5 MB" in said and str(out) in said
    assert "b: x (a link)" in left_out and "1 more" in left_out
    (left_out,) = describe_copied({"a": CopiedFiles(left_out=["\x1b]52;c;eA==\x07x\n\x1b[31my (a link)"])}, out)
    assert left_out.endswith("a: x\x1b[31my (a link)")


def test_a_process_with_this_ones_mounts_is_no_container() -> None:
    own = ProcessIdentity.of(os.getpid())
    assert own is not None
    assert not has_own_mounts(own)


def test_a_file_may_have_the_name_of_the_folder_for_second_files_of_a_name(tmp_path: Path) -> None:
    for name in ("out", "changes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "log").write_text(name)
    (tmp_path / "out/work").write_text("a file")
    kept = CopiedFiles()
    for name in ("out", "changes"):
        take(tmp_path / name, tmp_path / "kept", kept)
    found = {str(file.relative_to(tmp_path / "kept")) for file in (tmp_path / "kept").rglob("*") if file.is_file()}
    assert found == {"log", "work", "work~/log"} and (tmp_path / "kept/work~/log").read_text() == "changes"
    assert kept.left_out == []
