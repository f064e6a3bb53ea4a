from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.emulation.network import namespace
from testbed.emulation.process import ProcessIdentity, boot_id, stat_fields

pytestmark = pytest.mark.local


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def identity(pid: int) -> ProcessIdentity:
    found = ProcessIdentity.of(pid)
    assert found
    return found


def test_a_process_runs_until_it_ends(sleeper: subprocess.Popen[bytes]) -> None:
    process = identity(sleeper.pid)
    assert process.is_running
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not process.is_running, "a zombie"
    assert ProcessIdentity.of(sleeper.pid) is None
    sleeper.wait()
    process.send(signal.SIGTERM)


def test_a_signal_reaches_this_process_and_none_that_got_its_number(sleeper: subprocess.Popen[bytes]) -> None:
    process = identity(sleeper.pid)
    replace(process, start_ticks=process.start_ticks - 1).send(signal.SIGKILL)
    replace(process, boot="of-before").send(signal.SIGKILL)
    process.send(signal.SIGTERM)
    assert sleeper.wait() == -signal.SIGTERM


def test_a_boot_is_always_the_same_one(sleeper: subprocess.Popen[bytes]) -> None:
    process = identity(sleeper.pid)
    assert process.boot == boot_id()
    assert replace(process, boot="").is_running, "a record of an earlier version"
    assert not replace(process, boot="of-before").is_running


def test_a_namespace_is_entered_that_its_holder_has_and_no_other(sleeper: subprocess.Popen[bytes]) -> None:
    process = identity(sleeper.pid)
    with pytest.raises(ProcessLookupError):
        namespace.enter(replace(process, start_ticks=process.start_ticks - 1))
    if os.geteuid() == 0:
        with_own = threading.Thread(target=namespace.enter, args=(process,))
        with_own.start()
        with_own.join()
    sleeper.kill()
    sleeper.wait()
    with pytest.raises(ProcessLookupError):
        namespace.enter(process)


def test_a_command_whose_last_character_the_kernel_cut_hides_no_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("testbed.emulation.process.PROC", tmp_path)
    (tmp_path / "7").mkdir()
    command = "vergleich-größe".encode()[:13]
    assert command.endswith(b"\xc3"), "the first half of a character"
    (tmp_path / "7" / "stat").write_bytes(b"7 (" + command + b") S 1 2")
    assert stat_fields(7) == ["S", "1", "2"]
