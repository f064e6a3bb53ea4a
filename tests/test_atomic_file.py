from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from testbed import atomic_file
from testbed.atomic_file import UNFINISHED, new_folder, replacing, write_text


@pytest.mark.pure
def test_a_file_is_the_old_one_until_it_is_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_text(path, "old")
    with replacing(path) as file:
        file.write(b"n")
        file.flush()
        assert path.read_text() == "old"
        file.write("eü".encode())
    assert path.read_text(encoding="utf-8") == "neü"
    assert [each.name for each in tmp_path.iterdir()] == ["f"]


@pytest.mark.pure
def test_the_name_of_a_file_that_is_not_utf_8_is_written_escaped(tmp_path: Path) -> None:
    write_text(tmp_path / "f", os.fsdecode(b"exp\xe9.yaml, \xc3\xbc"))
    assert (tmp_path / "f").read_text(encoding="utf-8") == "exp\\udce9.yaml, ü"


@pytest.mark.pure
def test_what_fails_midway_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_text(path, "old")
    with pytest.raises(KeyError), replacing(path) as file:
        file.write(b"half")
        raise KeyError
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["f"]


@pytest.mark.local
def test_a_kill_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_text(path, "old")
    program = (
        "import os, sys; from pathlib import Path; from testbed.atomic_file import replacing\n"
        "with replacing(Path(sys.argv[1])) as file:\n"
        "    file.write(b'half'); file.flush(); os.kill(os.getpid(), 9)"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", program, path], check=False, env={**os.environ, "PYTHONPATH": root})
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    assert sorted(each.suffix for each in tmp_path.iterdir()) == ["", UNFINISHED]
    write_text(path, "new")
    assert path.read_text() == "new"


@pytest.mark.pure
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_an_error_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught:
        write_text(Path("/dev/full"), "x" * 10_000)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "/dev/full")
    with pytest.raises(FileNotFoundError, match="/none/f"):
        write_text(tmp_path / "none/f", "x")


@pytest.mark.local
def test_many_writers_of_one_file_leave_one_of_their_contents(tmp_path: Path) -> None:
    path = tmp_path / "f"
    threads = [
        threading.Thread(target=lambda i=i: [write_text(path, f"{i}" * 5000) for _ in range(20)]) for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    content = path.read_text()
    assert content == content[0] * 5000
    assert [each.name for each in tmp_path.iterdir()] == ["f"]


@pytest.mark.pure
def test_writers_in_two_containers_have_files_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their threads can have the same number, and both may write into a shared folder."""
    path = tmp_path / "f"
    with replacing(path) as file:
        file.write(b"half")
        with monkeypatch.context() as other_container:
            other_container.setattr(atomic_file, "_PROCESS", "other")
            write_text(path, "theirs")
        assert path.read_text() == "theirs"
        file.write(b" and whole")
    assert path.read_text() == "half and whole"
    assert [each.name for each in tmp_path.iterdir()] == ["f"]


@pytest.mark.pure
def test_a_secret_is_never_readable_by_others(tmp_path: Path) -> None:
    with replacing(tmp_path / "f", 0o600) as file:
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o600


@pytest.mark.pure
def test_links_and_pipes_stay_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    write_text(tmp_path / "link", "x")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_text() == "x"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text(tmp_path / "pipe", "through")
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.pure
def test_a_folder_made_for_files_that_were_not_written_goes_again(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for folder in (tmp_path / "there", tmp_path / "a/b/c"):
        with pytest.raises(OSError, match="full"), new_folder(folder):
            raise OSError("full")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


@pytest.mark.pure
def test_a_folder_made_for_files_stays_with_one_of_them(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="full"), new_folder(tmp_path / "a/b"):
        (tmp_path / "a/file").touch()
        raise OSError("full")
    with new_folder(tmp_path / "c") as made:
        assert made == [tmp_path / "c"]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "c", "file"]
