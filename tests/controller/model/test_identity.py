"""Tokens and keys of members: each from the run's secret, none from another."""

from __future__ import annotations

from itertools import combinations

import pytest

from testbed.controller.model.identity import Identities

pytestmark = pytest.mark.pure

MEMBERS = ("paris", "tokyo", "dallas")


def test_two_members_have_one_key_and_no_other_pair_has_it() -> None:
    identities = Identities(MEMBERS, "of the run")
    found = {(one, other): identities.keys(one)[other] for one in MEMBERS for other in MEMBERS if one != other}
    assert all(found[one, other] == found[other, one] for one, other in found)
    assert len(set(found.values())) == len(list(combinations(MEMBERS, 2)))
    assert {len(bytes.fromhex(key)) for key in found.values()} == {32}
    tokens = {identities.token(member) for member in MEMBERS}
    assert len(tokens | set(found.values())) == len(tokens) + 3


def test_they_are_the_same_again_and_others_in_another_run() -> None:
    first, again, other = Identities(MEMBERS, "x"), Identities(MEMBERS, "x"), Identities(MEMBERS, "y")
    assert first.keys("paris") == again.keys("paris") and first.token("paris") == again.token("paris")
    assert set(first.keys("paris").values()).isdisjoint(other.keys("paris").values())


def test_names_can_t_be_run_together_to_another_pair_s_key() -> None:
    keys = Identities(("a", "bc", "ab", "c"), "x")
    assert keys.keys("a")["bc"] != keys.keys("ab")["c"]


def test_one_that_is_added_has_keys_that_it_would_have_had_from_the_begin() -> None:
    identities, whole = Identities(MEMBERS[:2], "x"), Identities(MEMBERS, "x")
    before = identities.keys("paris")
    identities.add("dallas")
    assert identities.keys("dallas") == whole.keys("dallas") and identities.token("dallas") == whole.token("dallas")
    assert identities.keys("paris") == {**before, "dallas": identities.key("dallas", "paris")} == whole.keys("paris")


def test_a_member_is_let_in_by_its_token_or_its_own_socket() -> None:
    identities = Identities(MEMBERS, "x")
    assert identities.refusal("paris", "", "paris") == ""
    assert identities.refusal("paris", identities.token("paris"), None) == ""
    assert "'tokyo'" in identities.refusal("paris", identities.token("paris"), "tokyo")
    for token in ("", "guess", "\udcff", identities.token("tokyo")):
        assert "'paris'" in identities.refusal("paris", token, None)
    assert "'x'" in identities.refusal("x", "", None)
