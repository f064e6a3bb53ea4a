"""The launcher of the guest kernel: what runs in it is `python -m tests.guest`, wherever this kernel lacks netem."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.guest.kernel import KERNEL_MODULES, REPOSITORY, GuestError, run_in_guest, test_in_guest
from tests.waiting import until

pytestmark = pytest.mark.system


def test_the_status_and_report_of_a_run_come_back() -> None:
    result = test_in_guest(["-m", "pure or local", "tests/emulation/shaping/test_iptables.py"], limit_s=280)
    assert result.status == 0, result.console
    assert result.junit.count("<testcase") == 4


def test_a_run_that_fails_says_so() -> None:
    assert test_in_guest(["-p", "no_such_plugin"], limit_s=280).status != 0


def test_a_kernel_without_ipv6_carries_a_network() -> None:
    """The network has bridges: a first network of Open vSwitch loses packets in a guest that has just booted."""
    tests = ["tests/emulation/network/test_switch.py", "-k", "bridge"]
    pytest_there = [sys.executable, "-m", "pytest", "--color=no", "-p", "no:cacheprovider", *tests]
    command = ["sh", "-c", 'test ! -e /proc/sys/net/ipv6 && exec "$@"', "sh", *pytest_there]
    result = run_in_guest(command, limit_s=580, boot=["ipv6.disable=1"])
    assert result.status == 0, result.console


def test_the_kernel_and_programs_load_modules_that_they_need() -> None:
    """The kernel loads the table, and iptables what reads it; both start modprobe with an environment of their own."""
    assert not {"ip6_tables", "ip6table_raw"} & set(KERNEL_MODULES)
    result = run_in_guest(["ip6tables-legacy", "--table", "raw", "--list-rules"], limit_s=280)
    assert result.status == 0, result.console


def test_the_guest_is_killed_when_its_time_is_up() -> None:
    with pytest.raises(GuestError, match=r"0\.5 s"):
        test_in_guest(["--version"], limit_s=0.5)


def test_the_guest_ends_with_the_process_that_started_it() -> None:
    """The guest ends even where its starter is killed, and can clean up nothing."""
    launcher = "from tests.guest.kernel import run_in_guest; run_in_guest(['sleep', '200'], limit_s=200)"
    with subprocess.Popen([sys.executable, "-c", launcher], cwd=REPOSITORY) as process:
        until(lambda: init_below(process.pid) != "")
        init = init_below(process.pid)
        until(lambda: len(running(init)) > 3)  # processes run in it, too
        os.kill(process.pid, signal.SIGKILL)
    shutil.rmtree(Path(init).parent)  # the launcher's, which could not
    until(lambda: not running(init))


def init_below(pid: int) -> str:
    """Return the init script of the guest that a process has started; empty while there is none."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return next((found for child in children if (found := init_of(Path(f"/proc/{child}")))), "")


def init_of(folder: Path) -> str:
    try:
        return (folder / "cmdline").read_text(errors="replace").partition("\0init=")[2].partition("\0")[0]
    except OSError:
        return ""  # it has ended


def running(init: str) -> list[int]:
    """Return the processes of a guest: its kernel's own, and those in which it runs the guest's processes."""
    return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal() and init_of(each) == init]
