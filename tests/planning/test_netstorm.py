from __future__ import annotations

import pytest

from testbed.planning import PolicyError, make_policy
from tests.planning.networks import LAN, sites, view_of

pytestmark = pytest.mark.unit


def test_trees_alike_get_equal_shares() -> None:
    """a -10- b -20- c: every pair has an edge, and no detour pays. So each tree has one level, at 10 Mbit/s."""
    view = view_of(sites(("a", "b", 10), ("b", "c", 20)), {})
    trees = make_policy("netstorm").plan(view).trees
    assert [tree.root for tree in trees] == ["a-w0", "b-w0", "c-w0"]
    assert [tree.share for tree in trees] == pytest.approx([1 / 3] * 3)


def test_relaying_adds_a_level_and_lowers_a_root_s_share() -> None:
    """The direct edge a-c (5) costs 1/5, the way over b (20 each) 2/20: cheaper, so a and c are two levels apart."""
    view = view_of(sites(("a", "b", 20), ("b", "c", 20), ("a", "c", 5)), {}, lan=LAN)
    trees = {tree.root: tree for tree in make_policy("netstorm").plan(view).trees}
    assert trees["a-w0"].reduce == {"b-w0": "a-w0", "c-w0": "b-w0"}
    assert trees["b-w0"].share == pytest.approx(0.5)
    assert trees["a-w0"].share == pytest.approx(0.25) == trees["c-w0"].share


def test_the_best_roots_are_kept() -> None:
    view = view_of(sites(("a", "b", 20), ("b", "c", 20), ("a", "c", 5)), {})
    trees = make_policy("netstorm", {"roots": 1}).plan(view).trees
    assert [(tree.root, tree.share) for tree in trees] == [("b-w0", 1.0)]


def test_no_root_is_no_plan() -> None:
    with pytest.raises(PolicyError, match="at least 1"):
        make_policy("netstorm", {"roots": 0})
