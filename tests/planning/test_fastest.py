"""Sites as groups of a plan."""

from __future__ import annotations

import pytest

from testbed.plan import Plan, Tree
from testbed.planning import Edge, Member, PolicyError, View
from testbed.planning.fastest import with_site_groups

pytestmark = pytest.mark.pure

SITES = {"paris": ("p0", "p1", "p2"), "tokyo": ("t0",), "dallas": ("d0", "d1")}


def view(sites: dict[str, tuple[str, ...]] = SITES, without: tuple[str, ...] = ()) -> View:
    members = tuple(Member(name, site, 1.0, "", "") for site, names in sites.items() for name in names)
    names = [member.name for member in members]
    edges = {(a, b): Edge(1e6, 0.01) for a in names for b in names if a != b and not {a, b} <= {*without}}
    return View(members, {}, {}, edges, 1000)


def star(view: View) -> Plan:
    root, *rest = view.names
    parents = dict.fromkeys(rest, root)
    return Plan(3, view.names, (Tree(root, parents, parents),))


def test_each_site_is_a_group_whose_members_share_the_roots() -> None:
    plan = with_site_groups(star(view()), view(), 4)
    assert plan.period == 4 and [group.members for group in plan.groups] == list(SITES.values())
    for group in plan.groups:
        assert sorted(tree.root for tree in group.trees) == sorted(group.members)
    assert plan.trees == star(view()).trees


def test_one_site_alone_has_no_groups() -> None:
    alone = view({"paris": ("p0", "p1")})
    assert with_site_groups(star(alone), alone, 4) == star(alone)


def test_a_site_whose_members_do_not_reach_each_other_has_no_plan() -> None:
    with pytest.raises(PolicyError) as caught:
        with_site_groups(star(view()), view(without=("d0", "d1")), 2)
    assert (caught.value.rule, caught.value.given) == ("not-connected", ("d0", "d1"))
