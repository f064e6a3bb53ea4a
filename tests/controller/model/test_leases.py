"""Who counts as gone: pure, by a clock that the test turns."""

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
    return made.gone(now)


def test_who_does_not_renew_is_gone_after_a_lease() -> None:
    made = leases()
    assert not renewed(made, 5.0, "a", "b", "c")
    assert "8 s" in renewed(made, 8.5, "a", "b", "c")["d"]


def test_a_look_that_comes_late_blames_nobody() -> None:
    made = leases()
    assert made.look(30.0) == 29.0
    assert not made.gone(30.0) and not made.gone(36.5)
    assert made.gone(37.5).keys() == set(MEMBERS)


def test_who_could_not_renew_since_we_stood_still_within_a_lease_is_not_gone() -> None:
    made = Leases(5.0)
    made.begin(MEMBERS, 0.0)
    looks = [0.625, 1.25, 5.2]
    assert sum(map(made.look, looks)) == pytest.approx(3.325)
    made.begin(["e"], 5.3)  # which is no look of its own
    assert not made.gone(5.3)
    for member in ("a", "b", "c"):
        made.renew(member, 5.4)
    while not (gone := made.gone(looks[-1])):
        looks.append(looks[-1] + made.look_s)
        made.look(looks[-1])
    assert gone.keys() == {"d"} and "5 s" in gone["d"] and looks[-1] < 9.0


def test_a_stall_before_one_comes_counts_for_the_others() -> None:
    made = leases()
    made.begin(["e"], 9.0)
    made.look(9.1)
    assert not made.gone(9.1)


def test_who_is_waited_for_may_have_said_while_we_stood_still_that_it_went_on() -> None:
    made = leases()
    made.lose("a", "d", "the mean", False, 1.0)
    made.look(9.5)
    assert not renewed(made, 9.5, *MEMBERS)
    made.look(10.5)
    assert renewed(made, 17.6, *MEMBERS)["d"].startswith("a ")


def test_a_connection_that_broke_needs_two_witnesses() -> None:
    made = leases()
    made.lose("a", "d", "reset", True, 1.0)
    assert not made.gone(1.0)
    made.hang_up("d")
    assert made.gone(1.0)["d"].endswith(": reset")


def test_who_hung_up_may_come_back() -> None:
    made = leases()
    made.hang_up("d")
    assert not made.gone(1.0)
    made.renew("d", 2.0)
    made.lose("a", "d", "reset", True, 2.0)
    assert not made.gone(2.0)


def test_most_of_the_others_are_believed() -> None:
    made = leases()
    made.lose("a", "d", "reset", True, 1.0)
    made.lose("d", "a", "reset", True, 1.0)  # the path between the two, as far as anyone knows
    assert not made.gone(1.0)
    made.lose("b", "d", "reset", True, 1.0)
    assert made.gone(1.0).keys() == {"d"}


def test_who_is_waited_for_is_gone_unless_it_waits_itself() -> None:
    made = leases()
    made.lose("a", "c", "the mean", False, 1.0)
    made.lose("c", "d", "its partial sum", False, 1.0)
    assert not renewed(made, 5.0, *MEMBERS)
    assert renewed(made, 9.5, *MEMBERS)["d"].startswith("c ")
    made.advance("c", 2.0)
    made.advance("a", 2.0)
    assert not renewed(made, 10.0, *MEMBERS)


def test_what_strangers_say_or_is_said_of_them_counts_nothing() -> None:
    made = leases()
    made.end("d")
    for member in (*MEMBERS, "x"):
        made.lose(member, "d", "reset", True, 1.0)
        made.lose("x", member, "reset", True, 1.0)
    made.hang_up("d")
    assert not made.gone(1.0)


def test_a_connection_that_broke_between_two_who_are_there_is_to_be_made_anew() -> None:
    made = leases()
    made.lose("a", "d", "a frame that is none", True, 1.0)
    assert not renewed(made, 8.5, *MEMBERS) and not made.torn(8.5)
    assert not made.gone(9.5)
    assert made.torn(9.5).startswith("a ") and " d," in made.torn(9.5)
    made.advance("a", 9.6)
    assert not made.torn(9.7), "it finds its ways without"
    made.lose("b", "d", "reset", True, 9.8)
    made.begin(MEMBERS, 10.0)
    assert not made.torn(30.0), "all of it is forgotten once they have begun anew"
