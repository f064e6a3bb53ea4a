"""Leases: which members count as lost, by a clock that the test sets."""

from __future__ import annotations

import pytest

from testbed.controller.model.membership import Leases

pytestmark = pytest.mark.pure

MEMBERS = ("a", "b", "c", "d")


def leases() -> Leases:
    made = Leases(8.0)
    made.begin(MEMBERS, 0.0)
    return made


def renewed(made: Leases, now: float, *members: str) -> dict[str, str]:
    for member in members:
        made.renew(member, now)
    return made.lost_members(now)


def test_a_member_that_does_not_renew_is_gone_after_a_lease() -> None:
    made = leases()
    assert not renewed(made, 5.0, "a", "b", "c")
    assert "8 s" in renewed(made, 8.5, "a", "b", "c")["d"]


def test_a_look_that_comes_late_blames_nobody() -> None:
    made = leases()
    assert made.extend_for_stall(30.0) == 29.0
    assert not made.lost_members(30.0) and not made.lost_members(36.5)
    assert made.lost_members(37.5).keys() == set(MEMBERS)


def test_a_member_that_could_not_renew_during_a_stall_within_a_lease_is_not_gone() -> None:
    made = Leases(5.0)
    made.begin(MEMBERS, 0.0)
    looks = [0.625, 1.25, 5.2]
    assert sum(map(made.extend_for_stall, looks)) == pytest.approx(3.325)
    made.begin(["e"], 5.3)  # which is no look of its own
    assert not made.lost_members(5.3)
    for member in ("a", "b", "c"):
        made.renew(member, 5.4)
    while not (gone := made.lost_members(looks[-1])):
        looks.append(looks[-1] + made.check_interval_s)
        made.extend_for_stall(looks[-1])
    assert gone.keys() == {"d"} and "5 s" in gone["d"] and looks[-1] < 9.0


def test_a_stall_before_one_comes_counts_for_the_others() -> None:
    made = leases()
    made.begin(["e"], 9.0)
    made.extend_for_stall(9.1)
    assert not made.lost_members(9.1)


def test_a_member_that_is_waited_for_may_have_gone_on_during_a_stall() -> None:
    made = leases()
    made.report_peer("a", "d", "the mean", False, 1.0)
    made.extend_for_stall(9.5)
    assert not renewed(made, 9.5, *MEMBERS)
    made.extend_for_stall(10.5)
    assert renewed(made, 17.6, *MEMBERS)["d"].startswith("a ")


def test_a_connection_that_broke_needs_two_witnesses() -> None:
    made = leases()
    made.report_peer("a", "d", "reset", True, 1.0)
    assert not made.lost_members(1.0)
    made.disconnect("d")
    assert made.lost_members(1.0)["d"].endswith(": reset")


def test_a_member_that_hung_up_may_come_back() -> None:
    made = leases()
    made.disconnect("d")
    assert not made.lost_members(1.0)
    made.renew("d", 2.0)
    made.report_peer("a", "d", "reset", True, 2.0)
    assert not made.lost_members(2.0)


def test_a_connection_that_broke_a_lease_ago_proves_nothing_about_a_member_that_is_alive() -> None:
    made = leases()
    made.report_peer("a", "d", "reset", True, 1.0)
    made.advance("a", 2.0)  # it goes on without that connection
    assert not renewed(made, 7.0, *MEMBERS) and not renewed(made, 9.5, *MEMBERS)
    made.disconnect("d")
    assert not made.lost_members(9.5), "it may return within a lease"
    made.renew("d", 9.6)
    made.report_peer("b", "d", "reset", True, 9.7)
    assert not made.lost_members(9.7), "one of three is not most of the others"
    made.report_peer("c", "d", "reset", True, 9.8)
    assert made.lost_members(9.8)["d"].startswith("b ")


def test_most_of_the_others_are_believed() -> None:
    made = leases()
    made.report_peer("a", "d", "reset", True, 1.0)
    made.report_peer("d", "a", "reset", True, 1.0)  # the path between the two, as far as anyone knows
    assert not made.lost_members(1.0)
    made.report_peer("b", "d", "reset", True, 1.0)
    assert made.lost_members(1.0).keys() == {"d"}


def test_a_member_that_is_waited_for_is_gone_unless_it_waits_itself() -> None:
    made = leases()
    made.report_peer("a", "c", "the mean", False, 1.0)
    made.report_peer("c", "d", "its partial sum", False, 1.0)
    assert not renewed(made, 5.0, *MEMBERS)
    assert renewed(made, 9.5, *MEMBERS)["d"].startswith("c ")
    made.advance("c", 2.0)
    made.advance("a", 2.0)
    assert not renewed(made, 10.0, *MEMBERS)


def test_a_member_that_joined_has_longer_for_its_first_round() -> None:
    """It may still be fetching the state that it starts from."""
    made = leases()
    made.begin(["e"], 0.0, start_s=60.0)
    made.report_peer("a", "e", "the mean", False, 1.0)
    made.begin([*MEMBERS, "e"], 2.0)  # another member was lost meanwhile
    made.report_peer("a", "e", "the mean", False, 3.0)
    assert not renewed(made, 62.0, *MEMBERS, "e")
    assert renewed(made, 63.5, *MEMBERS, "e")["e"].startswith("a ")
    made.advance("e", 64.0)
    made.advance("a", 64.0)
    made.report_peer("a", "e", "the mean", False, 65.0)
    assert renewed(made, 73.5, *MEMBERS, "e").keys() == {"e"}


def test_what_strangers_say_or_is_said_of_them_counts_nothing() -> None:
    made = leases()
    made.end("d")
    for member in (*MEMBERS, "x"):
        made.report_peer(member, "d", "reset", True, 1.0)
        made.report_peer("x", member, "reset", True, 1.0)
    made.disconnect("d")
    assert not made.lost_members(1.0)


RING = (("a", "b"), ("b", "c"), ("c", "d"), ("d", "a"))
STAR = (("a", "b"), ("a", "c"), ("a", "d"))


@pytest.mark.parametrize(
    ("pairs", "unreached", "gone"),
    [
        (RING, {}, set()),
        (RING, {"a": "c", "c": "a"}, set()),
        (RING, {"c": "b", "b": "c"}, {"c"}),
        (RING, {"c": "abd"}, set()),
        (RING, {"a": "c", "b": "c", "c": "abd", "d": "c"}, {"c"}),
        (STAR, {"a": "bcd", "b": "a", "c": "a", "d": "a"}, {"a"}),
        (STAR, {"a": "c", "c": "a"}, {"c"}),
        (RING, {"a": "cd", "b": "cd", "c": "ab", "d": "ab"}, {"c", "d"}),
        (RING, {"a": "bcd", "b": "acd", "c": "abd", "d": "abc"}, set()),
    ],
    ids=[
        "none",
        "no edge of the plan",
        "an edge of one of its trees",
        "one says so",
        "all say so",
        "the server",
        "a path to it",
        "two of four",
        "no quorum",
    ],
)
def test_the_largest_part_of_the_members_goes_on(
    pairs: tuple[tuple[str, str], ...], unreached: dict[str, str], gone: set[str]
) -> None:
    made = leases()
    for member in MEMBERS:
        assert made.cut_off(MEMBERS, pairs, 2, 1.0) == {}, "others may say so, too"
        made.report_unreached(member, unreached.get(member, ""), 1.0)
    assert made.cut_off(MEMBERS, pairs, 2, 1.0).keys() == gone


def test_members_that_say_nothing_are_waited_for_during_a_lease() -> None:
    made = leases()
    for now in (1.0, 5.0, 9.0):
        made.report_unreached("c", "abd", now)
        assert made.cut_off(MEMBERS, RING, 2, now) == {}
    assert made.cut_off(MEMBERS, RING, 2, 9.1) == {"c": "no connection can be opened between c and a, b, d"}
    made.extend_for_stall(19.0)
    assert made.cut_off(MEMBERS, RING, 2, 19.0) == {}, "reports may wait in the controller's sockets"


def test_a_member_that_joins_is_not_cut_off_by_the_plan_before_it() -> None:
    made = leases()
    made.begin(["e"], 1.0)
    for member, peers in {"a": "ce", "b": "", "c": "a", "d": ""}.items():
        made.report_unreached(member, peers, 1.0)
    assert made.cut_off(MEMBERS, STAR, 2, 1.0).keys() == {"c"}


def test_a_member_that_is_reached_again_is_not_cut_off() -> None:
    made = leases()
    for reached in (lambda: made.report_unreached("c", (), 9.1), lambda: made.advance("c", 9.1)):
        made.report_unreached("c", "abd", 1.0)
        assert made.cut_off(MEMBERS, RING, 2, 9.1).keys() == {"c"}
        reached()
        assert made.cut_off(MEMBERS, RING, 2, 9.1) == {}


def test_a_claim_against_a_member_ends_with_the_round_that_it_finishes() -> None:
    """The path is back, and the member that said so finishes last."""
    made = leases()
    made.report_unreached("d", "a", 1.0)
    made.report_unreached("a", (), 2.0)
    assert made.cut_off(MEMBERS, STAR, 2, 9.5) == {}
    made.advance("a", 9.6)
    assert made.cut_off(MEMBERS, STAR, 2, 9.7) == {}
    made.advance("d", 9.8)
    made.report_unreached("d", "a", 12.0)
    assert made.cut_off(MEMBERS, STAR, 2, 21.0).keys() == {"d"}


def test_a_connection_that_broke_between_two_present_members_is_made_again() -> None:
    made = leases()
    made.report_peer("a", "d", "a frame that is none", True, 1.0)
    assert not renewed(made, 8.5, *MEMBERS) and not made.broken_connection(8.5)
    assert not made.lost_members(9.5)
    assert made.broken_connection(9.5).startswith("a ") and " d," in made.broken_connection(9.5)
    made.advance("a", 9.6)
    assert not made.broken_connection(9.7), "it finds its ways without"
    made.report_peer("b", "d", "reset", True, 9.8)
    made.begin(MEMBERS, 10.0)
    assert not made.broken_connection(30.0), "all of it is forgotten once they have begun anew"


def test_a_member_that_said_goodbye_is_gone_only_while_another_one_waits_for_it() -> None:
    made = leases()
    made.report_peer("d", "b", "reset", True, 1.0)
    made.leave("d")
    made.report_peer("a", "d", "closed its connection", True, 1.0)
    made.report_peer("d", "c", "closed its connection", True, 1.0)
    assert not renewed(made, 9.5, "a", "b", "c") and not made.broken_connection(9.5)
    made.report_peer("a", "d", "the mean", False, 9.6)
    assert "8 s" in renewed(made, 9.7, "a", "b", "c")["d"]
    made.advance("a", 9.8)
    assert not made.lost_members(9.8)


def test_most_of_the_others_are_most_of_those_that_have_not_said_goodbye() -> None:
    made = leases()
    made.leave("a")
    made.leave("b")
    made.report_peer("c", "d", "reset", True, 1.0)
    assert made.lost_members(1.0).keys() == {"d"}


def test_a_member_that_said_goodbye_stays_one_when_the_others_begin_anew() -> None:
    made = leases()
    made.leave("d")
    made.begin(MEMBERS, 1.0)
    assert not renewed(made, 9.5, "a", "b", "c")
    made.end("d")
    made.begin(["d"], 10.0)
    assert "8 s" in renewed(made, 18.5, "a", "b", "c")["d"]
