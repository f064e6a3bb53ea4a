"""The members of an all-reduce group: what members are told when one is lost or comes. No sockets, no threads."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from testbed.controller.model.actions import Tell
from testbed.controller.model.identity import Identities
from testbed.controller.model.membership import AllReduceMembership
from testbed.controller.model.spec import Elasticity
from testbed.plan import Plan, Tree
from testbed.protocol import Abort, Hello, Holding, Job, Lost, Prepare, Reconfigure, Rejoin, Stop, Welcome

pytestmark = pytest.mark.pure

LEASE_S = 4.0
ADDRESSES = {name: (f"10.0.0.{number}", 4000) for number, name in enumerate("abcd", 1)}


def plan_of(members: str, epoch: int = 0) -> Plan:
    """Everybody sends to the first."""
    root, *others = members
    ways = dict.fromkeys(others, root)
    return Plan(epoch, tuple(members), (Tree(root, ways, ways),))


def begun(members: str = "abc") -> AllReduceMembership:
    membership = AllReduceMembership(Identities(members, "hush"), Elasticity(quorum=2, lease_s=LEASE_S))
    membership.roster = dict(ADDRESSES)
    membership.leases.begin(membership.present, 0.0)
    return membership


def aborted(epoch: int = 5) -> AllReduceMembership:
    """b is lost, and the others are to say what they hold."""
    membership = begun()
    list(membership.remove({"b": "killed"}))
    list(membership.abort(epoch, "b is gone: killed", 10.0))
    return membership


def holding(member: str, epoch: int = 5) -> Holding:
    return Holding(member, epoch, round=7, over=False, elements=10, final=((0, 5),))


def all_there(membership: AllReduceMembership, since: float, until: float, renewing: str) -> None:
    """Nobody is gone in this time, in which these renew; it is looked as often as the controller does."""
    for number in range(1, round((until - since) / membership.leases.check_interval_s) + 1):
        now = since + number * membership.leases.check_interval_s
        for member in renewing:
            membership.leases.renew(member, now)
        assert membership.lost_members(now) == {}


def test_a_member_whose_lease_ran_out_is_gone() -> None:
    membership = begun()
    all_there(membership, 0.0, 4.0, "ac")
    assert membership.lost_members(4.5).keys() == {"b"}


def test_a_member_that_hung_up_and_was_lost_by_a_peer_is_gone() -> None:
    membership = begun()
    membership.leases.disconnect("b")
    assert membership.lost_members(0.1) == {}
    membership.report_loss(Lost("a", "b", "connection reset", 0), 0.2)
    assert "connection reset" in membership.lost_members(0.3)["b"]


@pytest.mark.parametrize(("generation", "gone"), [(4, set()), (5, {"c"})])
def test_a_member_that_went_on_before_its_peer_is_not_lost(generation: int, gone: set[str]) -> None:
    """c closes its connections of generation 4 when it is told to go on in 5, which a has yet to hear: of two, one that
    has lost the other is enough to be believed."""
    membership = aborted(epoch=5)
    for member in "ac":
        membership.add_holding(holding(member))
    list(membership.reconfigure(plan_of("ac", epoch=5)))
    membership.report_loss(Lost("a", "c", "closed its connection", generation), 10.1)
    assert membership.lost_members(10.2).keys() == gone


def test_a_lost_member_is_told_so_and_the_others_let_nothing_become_final() -> None:
    membership = begun()
    (tell,) = membership.remove({"b": "killed"})
    assert isinstance(tell, Tell) and isinstance(tell.message, Stop)
    assert (tell.member, tell.message.again) == ("b", True) and "killed" in tell.message.reason
    assert membership.present == frozenset("ac")
    assert list(membership.abort(5, "b is gone: killed", 10.0)) == [
        Tell("a", Abort(5, "b is gone: killed")),
        Tell("c", Abort(5, "b is gone: killed")),
    ]


def test_once_all_have_said_what_they_hold_they_go_on_with_that_under_the_next_plan() -> None:
    membership = aborted()
    assert not membership.add_holding(holding("a"))
    assert not membership.add_holding(holding("b"))  # takes part no more
    assert not membership.add_holding(holding("c", epoch=4))  # the answer to an earlier Abort
    assert membership.add_holding(holding("c"))
    plan = plan_of("ac", epoch=5)
    roster = {name: ADDRESSES[name] for name in "ac"}
    resume = Reconfigure(plan.to_json(), roster, (holding("a"), holding("c")))
    assert list(membership.reconfigure(plan)) == [Tell("a", resume), Tell("c", resume)]
    assert membership.reconfiguration is None


def test_a_member_that_does_not_say_what_it_holds_within_a_lease_is_gone() -> None:
    membership = aborted()
    membership.add_holding(holding("a"))
    all_there(membership, 10.0, 13.5, "ac")
    assert membership.lost_members(14.0).keys() == {"c"}


def test_while_the_controller_stood_still_nobody_could_say_what_it_holds() -> None:
    membership = aborted()
    membership.add_holding(holding("a"))
    assert membership.lost_members(14.0) == {}
    all_there(membership, 14.0, 17.0, "ac")
    assert membership.lost_members(17.5).keys() == {"c"}


def test_another_loss_begins_a_reconfiguration_again() -> None:
    membership = begun("abcd")
    list(membership.remove({"b": "killed"}))
    list(membership.abort(5, "b is gone", 10.0))
    membership.add_holding(holding("a"))
    list(membership.remove({"c": "killed too"}))
    assert [tell.member for tell in membership.abort(6, "c is gone", 11.0) if isinstance(tell, Tell)] == ["a", "d"]
    assert not membership.add_holding(holding("d"))  # of the first
    assert not membership.add_holding(holding("d", epoch=6))
    assert membership.add_holding(holding("a", epoch=6))


def test_a_comer_begins_from_its_nearest_and_takes_part_once_the_plan_is_in_force() -> None:
    membership = begun()
    plan, job = plan_of("abcd", epoch=3), Job(10)
    rates = {"a": 5e6, "b": 20e6, "c": 10e6}
    first, *others = membership.prepare(plan, "d", job, rates, 1.0)
    assert isinstance(first, Tell) and isinstance(first.message, Welcome)
    assert first.member == "d" and first.message.source == "b" and first.message.lease_s == LEASE_S
    keys = {name: {"d": Identities("abcd", "hush").key(name, "d")} for name in "abc"}
    assert others == [Tell(name, Prepare(plan.to_json(), ADDRESSES, "b", keys[name])) for name in "abc"]
    assert membership.present == frozenset("abc")
    membership.admit("d")
    assert membership.present == frozenset("abcd")
    all_there(membership, 1.0, 5.0, "abc")
    assert membership.lost_members(5.1).keys() == {"d"}  # it has a lease since it was let in


def hello(member: str) -> Hello:
    return Hello(member, ADDRESSES[member], returns=True)


def rejoin(member: str, aborted: bool = False) -> Rejoin:
    return Rejoin(member, {}, {}, 1, aborted, 2)


def test_a_member_that_comes_back_after_the_others_went_on_is_sent_away() -> None:
    membership = aborted()
    away = rejoin("b")
    (tell,) = membership.rejoin(hello("b"), away, 11.0)
    assert isinstance(tell, Tell) and isinstance(tell.message, Stop)
    assert (tell.member, tell.message.again) == ("b", True)
    back = replace(away, member="c")
    assert list(membership.rejoin(hello("c"), back, 11.0)) == [Tell("c", Abort(5, "b is gone: killed"))]


@pytest.mark.parametrize("halted", [True, False])
def test_a_restarted_controller_knows_once_all_are_back_whether_one_before_it_aborted(halted: bool) -> None:
    membership = AllReduceMembership(Identities("abc", "hush"), Elasticity(quorum=2))
    membership.recover(plan_of("ac", epoch=2), ADDRESSES)
    membership.leases.begin(membership.present, 0.0)
    assert membership.present == frozenset("ac") and membership.roster == ADDRESSES
    list(membership.rejoin(hello("a"), rejoin("a", halted), 0.1))
    assert not membership.abort_unfinished
    list(membership.rejoin(hello("c"), rejoin("c"), 0.2))
    assert membership.abort_unfinished == halted


def test_a_member_that_reconnects_during_a_recovery_leaves_no_abort_unfinished() -> None:
    membership = aborted()
    list(membership.rejoin(hello("a"), rejoin("a", aborted=True), 11.0))
    for member in "ac":
        membership.add_holding(holding(member))
    list(membership.reconfigure(plan_of("ac", epoch=5)))
    list(membership.rejoin(hello("c"), rejoin("c"), 500.0))
    assert not membership.abort_unfinished


def test_without_leases_nobody_is_gone() -> None:
    membership = AllReduceMembership(Identities("abc", "hush"), None)
    membership.report_loss(Lost("a", "b", "connection reset", 0), 0.0)
    membership.leases.disconnect("b")
    assert membership.lost_members(1e6) == {} and membership.quorum == 3
