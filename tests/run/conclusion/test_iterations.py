"""What a decentralized run's reports come to."""

from __future__ import annotations

import pytest

from testbed.run.conclusion.iterations import seconds_per_iteration, sync

pytestmark = pytest.mark.pure


def report(member: str, number: int, started_s: float, finished_s: float) -> dict[str, object]:
    return {"member": member, "round": number, "started_s": started_s, "finished_s": finished_s}


def test_a_member_that_leapt_shares_its_time_and_one_that_came_again_made_nothing_in_between() -> None:
    reports = [report("a", 1, 0, 1), report("a", 4, 1, 4), report("b", 1, 0, 2), report("b", 31, 60, 63)]
    swaps = [{"joins": "", "first": 2}, {"joins": "b", "first": None}, {"joins": "b", "first": 30}]
    assert sorted(seconds_per_iteration({"graph_swaps": swaps}, reports)) == [1, 1, 1, 1, 2, 3]


def test_goodput_is_what_is_left_of_members_own_rates_where_they_wait() -> None:
    """Of ten seconds one steps for all, 100 ms each; the other for half of them, 500 ms each."""

    def stepped(member: str, steps: float, stepping_s: float) -> dict[str, object]:
        times = {"compute_s": stepping_s / 4, "paced_s": stepping_s * 3 / 4}
        return {**report(member, 1, 0, 10), **times, "metrics": {"steps": steps}}

    final = {"graph_swaps": [], "rounds": 1, "gaps": {}}
    value = sync(final, [stepped("a", 100.0, 10.0), stepped("b", 10.0, 5.0)], batch=8)
    assert value["samples_per_second"] == pytest.approx(8 * 11)
    assert value["goodput"] == pytest.approx(11 / 12)
