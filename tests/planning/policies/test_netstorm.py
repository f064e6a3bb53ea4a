from __future__ import annotations

import pytest

from testbed.planning import PolicyError, make_policy
from tests.planning.networks import LAN, sites, view_of

pytestmark = pytest.mark.pure


def test_trees_alike_get_equal_shares() -> None:
    """Three sites, each beside the others: no detour pays, so each tree has one level."""
    view = view_of(sites(("a", "b", 10), ("b", "c", 10), ("a", "c", 10)), {})
    trees = make_policy("netstorm").plan(view).trees
    assert [tree.root for tree in trees] == ["a-w0", "b-w0", "c-w0"]
    assert [tree.share for tree in trees] == pytest.approx([1 / 3] * 3)


def test_an_edge_that_passes_another_member_s_site_is_not_used() -> None:
    """a -10- b -20- c: the edge from a to c looks as fast as that to b, but is made of it."""
    view = view_of(sites(("a", "b", 10), ("b", "c", 20)), {})
    trees = {tree.root: tree for tree in make_policy("netstorm").plan(view).trees}
    assert trees["a-w0"].reduce == {"b-w0": "a-w0", "c-w0": "b-w0"} == trees["a-w0"].broadcast


def test_auxiliary_routes_are_the_cheapest_disjoint_ways_beside_an_edge() -> None:
    """From a to b: over c (20 + 20), then over d (10 + 10); what is left has no other way."""
    graph = sites(("a", "b", 50), ("a", "c", 20), ("c", "b", 20), ("a", "d", 10), ("d", "b", 10))
    view = view_of(graph, {})
    plan = make_policy("netstorm").plan(view)
    assert [route.via for route in plan.auxiliary if (route.source, route.target) == ("a-w0", "b-w0")] == [
        ("c-w0",),
        ("d-w0",),
    ]
    used = {(source, target) for source, target, _ in plan.edges()}
    assert {(route.source, route.target) for route in plan.auxiliary} <= used
    assert make_policy("netstorm", {"auxiliary": False}).plan(view).auxiliary == ()


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
    with pytest.raises(PolicyError) as caught:
        make_policy("netstorm", {"roots": 0})
    assert (caught.value.field, caught.value.given) == ("roots", 0)
