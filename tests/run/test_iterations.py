"""What a decentralized run's reports come to."""

from __future__ import annotations

import pytest

from testbed.run.iterations import seconds_per_iteration

pytestmark = pytest.mark.unit


def report(member: str, number: int, started_s: float, finished_s: float) -> dict[str, object]:
    return {"member": member, "round": number, "started_s": started_s, "finished_s": finished_s}


def test_a_member_that_leapt_shares_its_time_and_one_that_came_again_made_nothing_in_between() -> None:
    reports = [report("a", 1, 0, 1), report("a", 4, 1, 4), report("b", 1, 0, 2), report("b", 31, 60, 63)]
    swaps = [{"joins": "", "first": 2}, {"joins": "b", "first": None}, {"joins": "b", "first": 30}]
    assert sorted(seconds_per_iteration({"graph_swaps": swaps}, reports)) == [1, 1, 1, 1, 2, 3]
