"""Groupings as plans, and what is said about them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from testbed.plan import Plan
from testbed.planning import PolicyError, View, make_policy
from testbed.planning.cpn import Cpn
from tests.planning.cpn.instances import labels_of, view_of
from tests.planning.networks import sites
from tests.planning.networks import view_of as network

pytestmark = pytest.mark.unit

TWO_SITES = network(sites(("a", "b", 5), delay=0.05), {"a": 3, "b": 3}, model_bytes=2_000_000)


def test_sites_far_apart_are_groups() -> None:
    plan = Cpn(step_s=0.02).plan(TWO_SITES)
    assert {frozenset(group.members) for group in plan.groups} == {
        frozenset(f"{site}-w{i}" for i in range(3)) for site in "ab"
    }
    assert plan.period > 1


@pytest.mark.parametrize("spatial", ["leader", "sharded"])
def test_what_crosses_the_wide_area(spatial: str) -> None:
    """One leader a group sends all of it, or each member a third."""
    plan = Cpn(step_s=0.02, spatial=spatial).plan(TWO_SITES)
    crossing: dict[str, float] = {}
    for source, target, tree in plan.edges():
        if source[0] != target[0]:
            crossing[source] = crossing.get(source, 0.0) + plan.trees[tree].share
    assert crossing == pytest.approx(
        {group.members[0]: 1.0 for group in plan.groups} if spatial == "leader" else dict.fromkeys(plan.members, 1 / 3)
    ) or len(crossing) == len(plan.groups)
    assert sum(crossing.values()) == pytest.approx(2.0)


@pytest.mark.parametrize("groups", ["sites", "random"])
def test_groups_by_rule(groups: str) -> None:
    plan = Cpn(step_s=0.02, groups=groups).plan(TWO_SITES)
    parts = {frozenset(group.members) for group in plan.groups}
    assert {len(part) for part in parts} == {3}
    assert (parts == {frozenset(f"{site}-w{i}" for i in range(3)) for site in "ab"}) == (groups == "sites")


def test_the_reasons_add_up() -> None:
    view = view_of(5, 9)
    policy = Cpn(labels=labels_of(5, view))
    why = policy.explain(view, policy.plan(view))
    factor = 1 + sum(why["factor"].values())
    assert why["cost_s_per_step"] == pytest.approx(factor * max(group["s_per_step"] for group in why["groups"]))
    for group in why["groups"]:
        exchange_s = group["rtt_s"] + group["transfer_s"]
        steps = group["s_per_step"] * group["period"]
        assert steps >= (group["compute_s"] + group["ring_s"]) / max(group["steps"].values())
        assert group["stale_rounds"] == pytest.approx(exchange_s / (group["compute_s"] + group["ring_s"]))


def test_replanning_keeps_what_is_good_and_leaves_what_got_slow() -> None:
    view = network(sites(("a", "b", 50), delay=0.05), {"a": 2, "b": 2}, model_bytes=2_000_000)
    policy = Cpn(step_s=0.02)
    last = policy.plan(view)
    assert policy.replan(view, last) == last
    slow = {
        name: replace(link, rate_bps=link.rate_bps / 10) if name == "a->b" else link
        for name, link in view.links.items()
    }
    changed = View.of_network(view.members, slow, view.routes, view.model_bytes)
    assert policy.replan(changed, last).period > last.period
    other = make_policy("ring").plan(view)
    assert policy.replan(view, other) == last


def test_a_member_that_computes_slowly_takes_fewer_steps() -> None:
    members = tuple(replace(m, speed=0.25 if m.name == "a-w0" else 1.0) for m in TWO_SITES.members)
    view = replace(TWO_SITES, members=members)
    why = Cpn(every=8).explain(view, Plan(0, view.names, make_policy("ring").plan(view).trees))
    assert why["groups"][0]["steps"] == {name: 2 if name == "a-w0" else 8 for name in view.names}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"every": 0}, "every 0 must be a whole number"),
        ({"groups": "best"}, "groups 'best' is none of search, sites, random"),
        ({"spatial": "both"}, "spatial 'both' is none of leader, sharded"),
        ({"temporal": 1}, "temporal 1 must be true or false"),
        ({"drift": -1}, "drift -1 must be a number, at least 0"),
        ({"step_s": 0}, "step_s 0 must be the seconds of a step"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, object], said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        make_policy("cpn", options)


def test_labels_of_strangers_are_refused() -> None:
    with pytest.raises(PolicyError, match=r"labels must be those of every member and nobody else; it is about"):
        Cpn(labels={"x": [1.0]}).plan(TWO_SITES)
