"""The tests that need netem or Open vSwitch, in a guest kernel where this one has not what they need."""

from __future__ import annotations

import pytest

from testbed.emulation.shaping import available_backends
from tests.guest.kernel import GuestError, run_in_guest

pytestmark = pytest.mark.privileged

LIMIT_S = 600


@pytest.mark.timeout(LIMIT_S + 60)
def test_the_guest_lane_passes() -> None:
    if available_backends()["netem"] is None:
        pytest.skip("this kernel has netem: the tests marked guest run on it, by pytest -m guest")
    result = run_in_guest(["-m", "guest"], limit_s=LIMIT_S)
    assert result.status == 0, result.console
    assert "<testcase" in result.junit


def test_the_guest_is_killed_when_its_time_is_up() -> None:
    with pytest.raises(GuestError, match=r"still running after 0\.5 s"):
        run_in_guest(["--version"], limit_s=0.5)


def test_a_failing_run_is_told_apart_from_one_without_tests() -> None:
    assert run_in_guest(["-m", "no_such_mark_anywhere", "tests/guest"], limit_s=60).status != 0
