"""The launcher of the guest kernel: what runs in it is `python -m tests.guest`, wherever this kernel lacks netem."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.guest.kernel import REPOSITORY, GuestError, test_in_guest

pytestmark = pytest.mark.privileged


def test_the_status_and_report_of_a_run_come_back() -> None:
    result = test_in_guest(["-m", "unit", "tests/emulation/shaping/test_iptables.py"], limit_s=60)
    assert result.status == 0, result.console
    assert result.junit.count("<testcase") == 2


def test_a_run_that_fails_says_so() -> None:
    assert test_in_guest(["tests/no_such_file.py"], limit_s=60).status != 0


def test_the_guest_is_killed_when_its_time_is_up() -> None:
    with pytest.raises(GuestError, match=r"still running after 0\.5 s"):
        test_in_guest(["--version"], limit_s=0.5)


def test_the_guest_ends_with_who_started_it() -> None:
    """Also where that is killed, and can take nothing away."""
    launcher = "from tests.guest.kernel import test_in_guest; test_in_guest(['--version'], limit_s=60)"
    with subprocess.Popen([sys.executable, "-c", launcher], cwd=REPOSITORY) as process:
        wait_until(lambda: kernels_under(process.pid) != [])
        (kernel,) = kernels_under(process.pid)
        os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not session(kernel))


def kernels_under(pid: int) -> list[int]:
    """Its children that lead a session: the kernel does."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if os.getsid(int(child)) == int(child)]


def session(leader: int) -> list[int]:
    """Processes of a session: the kernel's own, and those it runs its guest's in."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                state, _, _, of = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if int(of) == leader and state != "Z":
                found.append(int(folder.name))
    return found


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)
