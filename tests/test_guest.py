"""The launcher of the guest kernel: what runs in it is `python -m tests.guest`, wherever this kernel lacks netem."""

from __future__ import annotations

import pytest

from tests.guest.kernel import GuestError, test_in_guest

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
