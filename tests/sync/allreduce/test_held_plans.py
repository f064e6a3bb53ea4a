"""Plans that a member holds, until another generation is agreed on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from testbed.plan import Group, Plan, PlanError
from testbed.sync.allreduce.held_plans import HeldPlans
from tests.sync.plans import chain, names, star

pytestmark = pytest.mark.pure

MEMBERS = names(3)


def plan(epoch: int) -> Plan:
    return Plan(epoch, MEMBERS, (chain(MEMBERS) if epoch % 2 else star(MEMBERS, "m0"),))


def test_a_plan_is_used_once_all_have_agreed_on_it_and_older_ones_are_forgotten() -> None:
    plans = HeldPlans("m1", plan(0))
    plans.keep(plan(1))
    assert plans.successor == 0
    plans.hold(1)
    assert (plans.successor, plans.in_force.epoch) == (1, 0)
    plans.agree(0, 1)
    assert plans.in_force.epoch == 1 and plans.forget() == 0
    plans.agree(1, 1)
    assert plans.forget() == 1 and plans.get(0) is None


def test_a_generation_that_is_agreed_on_leaves_the_plan_before_it_in_sight() -> None:
    """The next generation's group holds its plan; the old group goes on returning its own last plan."""
    plans = HeldPlans("m1", plan(0))
    plans.promise(7)
    plans.agree(0, 7)
    assert plans.agreed == 7 and plans.in_force.epoch == 0 and plans.newest == 7


def test_a_peer_comes_no_further_than_to_the_next_round_among_all() -> None:
    """The limit holds under the plan in force, and under plans that may have come into force since."""
    halves = tuple(Group(part, (chain(part),)) for part in (MEMBERS[:1], MEMBERS[1:]))
    plans = HeldPlans("m1", plan(0))
    assert plans.last_before(4) == 5
    plans.keep(replace(plan(1), groups=halves, period=4))
    assert plans.last_before(4) == 8
    plans.advance(1)
    assert [plans.last_before(number) for number in (3, 4, 7)] == [4, 8, 8]
    plans.advance(0)
    assert plans.agreed == 1 and plans.in_force.epoch == 1


def test_chunks_hold_as_many_values_as_codecs_send_in_a_plans_bytes() -> None:
    """Frames have 90 bytes beside their payload: of chunks of 16 KiB of values, `sparse` leaves less than that."""
    plans = HeldPlans("m1", replace(plan(0), chunk_bytes=1 << 14))
    assert [len(chunk) for chunk in plans.layout(0, True, 400_000, 4).chunks] == [4096] * 97 + [2688]
    plans.keep(replace(plan(1), chunk_bytes=1 << 14, codec="sparse"))
    assert [len(chunk) for chunk in plans.layout(1, True, 400_000, 4).chunks] == [163_840, 163_840, 72_320]
    assert plans.most_bytes == 4 * 163_840


def test_only_what_is_newer_and_for_the_same_members_is_kept() -> None:
    plans = HeldPlans("m1", plan(3))
    with pytest.raises(PlanError) as caught:
        plans.keep(plan(3))
    assert (caught.value.field, caught.value.epoch) == ("epoch", 3)
    with pytest.raises(PlanError) as caught:
        plans.keep(Plan(4, names(2), (chain(names(2)),)))
    assert (caught.value.field, caught.value.epoch) == ("members", 4)


def test_a_refused_plan_too_ends_the_wait_for_the_earlier_one() -> None:
    """The controller sends a plan once the earlier one is in force or dropped, and no member may announce that one."""
    plans = HeldPlans("m1", plan(0))
    plans.keep(plan(1))
    plans.hold(1)
    with pytest.raises(PlanError):
        plans.keep(plan(1))
    assert plans.successor == 0 and 1 in plans
