"""Groupings as plans, and what is said about them."""

from __future__ import annotations

import random
import warnings
from dataclasses import replace
from itertools import combinations

import networkx as nx
import pytest

from testbed.plan import Plan
from testbed.planning import PolicyError, View, make_policy, predict
from testbed.planning.policies.cpn import Cpn
from tests.planning.networks import sites
from tests.planning.networks import view_of as network
from tests.planning.policies.cpn.instances import labels_of, view_of

pytestmark = pytest.mark.pure

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
    if spatial == "sharded":
        assert crossing == pytest.approx(dict.fromkeys(plan.members, 1 / 3))
    else:
        assert len(crossing) == len(plan.groups)
        assert list(crossing.values()) == pytest.approx([1.0, 1.0])


def test_spread_over_all_ways_between_leaders() -> None:
    """Three sites in a circle: each link carries a part, and rounds among all are quicker than along one tree."""
    view = network(sites(("a", "b", 5), ("b", "c", 5), ("c", "a", 5), delay=0.01), {}, model_bytes=2_000_000)
    plans = [Cpn(step_s=0.02, groups="sites", spatial=spatial).plan(view) for spatial in ("leader", "spread")]
    assert [len(plan.trees) > 1 for plan in plans] == [False, True]
    one, spread = (predict(plan, view).seconds for plan in plans)
    assert spread < 0.8 * one


@pytest.mark.parametrize("groups", ["sites", "random"])
def test_groups_by_rule(groups: str) -> None:
    plan = Cpn(step_s=0.02, groups=groups).plan(TWO_SITES)
    parts = {frozenset(group.members) for group in plan.groups}
    assert {len(part) for part in parts} == {3}
    assert (parts == {frozenset(f"{site}-w{i}" for i in range(3)) for site in "ab"}) == (groups == "sites")


def test_a_ring_has_no_missing_edge() -> None:
    """The outer two of three sites in a row have no edge, so that no ring leads around all members."""
    whole = network(sites(("a", "b", 50), ("b", "c", 50)), {}, model_bytes=2_000_000)
    view = replace(whole, edges={pair: edge for pair, edge in whole.edges.items() if "b-w0" in pair})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = Cpn(step_s=0.02).plan(view)
        with pytest.raises(PolicyError):
            Cpn(step_s=0.02, overlap=True).plan(replace(whole, edges={}))
    assert len(plan.groups) > 1
    assert all((u, v) in view.edges for group in (plan.whole, *plan.groups) for u, v, _ in group.edges())


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


@pytest.mark.parametrize("seed", range(4))
def test_replanning_begins_with_the_ring_of_a_plan_without_groups(seed: int) -> None:
    """The members of such a plan stand in the view's order, which is a worse ring."""
    draw = random.Random(seed)
    graph = nx.Graph()
    for a, b in combinations("abcdefgh", 2):
        graph.add_edge(a, b, rates=(1e9, 1e9), delay=draw.uniform(0.002, 0.05))
    view = network(graph, {}, model_bytes=400_000)
    policy = Cpn(labels={name: [int(i == j) for j in range(8)] for i, name in enumerate(view.names)}, skew=1.0)
    plan = policy.plan(view)
    assert not plan.groups
    assert policy.cost(view, policy.replan(view, plan)) <= policy.cost(view, plan) * (1 + 1e-9)


def slowed(view: View, factor: float) -> View:
    """The view with the link from a to b slower by a factor."""
    links = {
        name: replace(link, rate_bps=link.rate_bps / factor) if name == "a->b" else link
        for name, link in view.links.items()
    }
    return View.of_network(view.members, links, view.routes, view.model_bytes)


def test_exchanges_go_through_stronger_codecs_the_slower_the_links() -> None:
    """Inside a group none is needed, nor on the link that carries as much without."""
    fast = network(sites(("a", "b", 1000), delay=0.01), {"a": 2, "b": 2}, model_bytes=500_000)
    policy = Cpn(step_s=0.1, codecs=True, overlap=True)
    assert policy.plan(fast).link_codecs == {}
    plan = policy.plan(slowed(fast, 1000))
    assert {(link[0], link[-4]): codec for link, codec in plan.link_codecs.items()} == {("a", "b"): "int8"}
    assert plan.codec == "fp32"


def test_swaps_are_judged_by_the_cost_at_the_plan_s_own_period() -> None:
    fast = network(sites(("a", "b", 50), delay=0.05), {"a": 2, "b": 2}, model_bytes=2_000_000)
    policy = Cpn(step_s=0.02)
    plan = policy.plan(fast)
    slow = slowed(fast, 10)
    other = policy.replan(slow, plan)
    assert other.period > plan.period
    assert policy.cost(slow, other) < 0.9 * policy.cost(slow, plan)
    assert policy.cost(fast, plan) < policy.cost(fast, replace(plan, period=other.period))


def test_a_plan_is_judged_under_a_view_with_a_member_that_joins() -> None:
    """The plan has no steps for the newcomer, which counts with those that its speed allows."""
    policy, model_bytes = Cpn(step_s=0.02), 2_000_000
    before, now = (network(sites(("a", "b", 50)), {"a": count, "b": 0}, model_bytes=model_bytes) for count in (3, 4))
    with_all = policy.plan(now)
    assert policy.cost(now, policy.plan(before)) == pytest.approx(policy.cost(now, with_all), rel=0.5)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_plan_s_cost_is_that_of_its_rounds(overlap: bool) -> None:
    """Three rounds inside the groups and one among all; beside the steps the shorter of two costs a tenth."""
    policy = Cpn(step_s=0.02, overlap=overlap, drift=0)
    plan = replace(policy.plan(TWO_SITES), period=4)
    groups = policy.explain(TWO_SITES, plan)["groups"]

    def both(compute_s: float, reduce_s: float) -> float:
        shorter = 0.1 if overlap else 1
        return max(compute_s, reduce_s) + shorter * min(compute_s, reduce_s)

    inside = max(both(group["compute_s"], group["ring_s"]) for group in groups)
    among = both(groups[0]["compute_s"], predict(plan, TWO_SITES).seconds)
    assert policy.cost(TWO_SITES, plan) == pytest.approx((3 * inside + among) / 4 / 8)


def test_slow_sites_are_groups_of_their_own_where_all_go_on_together() -> None:
    """A step of theirs takes as long as eight of the others': nobody waits, and no ring crosses the wide area."""
    members = tuple(replace(m, speed=0.125 if m.site == "a" else 1.0) for m in TWO_SITES.members)
    plan = Cpn(step_s=0.02, temporal=False, overlap=True).plan(replace(TWO_SITES, members=members))
    assert {frozenset(m[0] for m in group.members) for group in plan.groups} == {frozenset("a"), frozenset("b")}


def test_steps_are_told_by_speed_and_a_slowed_member_s_plan_costs_more() -> None:
    policy = Cpn(step_s=0.02, temporal=False)
    plan = policy.plan(TWO_SITES)
    assert plan.steps == dict.fromkeys(TWO_SITES.names, 8)
    slower = replace(
        TWO_SITES, members=tuple(replace(m, speed=0.25 if m.name == "a-w0" else 1.0) for m in TWO_SITES.members)
    )
    other = policy.replan(slower, plan)
    assert other.steps == {**plan.steps, "a-w0": 2}
    assert policy.cost(slower, other) < policy.cost(slower, plan)


def test_a_member_that_computes_slowly_takes_fewer_steps() -> None:
    members = tuple(replace(m, speed=0.25 if m.name == "a-w0" else 1.0) for m in TWO_SITES.members)
    view = replace(TWO_SITES, members=members)
    why = Cpn(every=8).explain(view, Plan(0, view.names, make_policy("ring").plan(view).trees))
    assert why["groups"][0]["steps"] == {name: 2 if name == "a-w0" else 8 for name in view.names}


@pytest.mark.parametrize(
    "options",
    [
        {"every": 0},
        {"groups": "best"},
        {"spatial": "both"},
        {"temporal": 1},
        {"codecs": "int8"},
        {"drift": -1},
        {"step_s": 0},
        {"labels": {"a-w0": [3, 1], "a-w1": [0, 0]}},
    ],
)
def test_options_that_make_no_sense(options: dict[str, object]) -> None:
    with pytest.raises(PolicyError) as caught:
        make_policy("cpn", options)
    assert {caught.value.field: caught.value.given} == options


def test_labels_of_strangers_are_refused() -> None:
    with pytest.raises(PolicyError) as caught:
        Cpn(labels={"x": [1.0]}).plan(TWO_SITES)
    assert caught.value.field == "labels"
