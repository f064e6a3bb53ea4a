from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.plan import Plan, Tree
from testbed.planning import Edge, View, make_policy, policy_names, predict
from testbed.planning.constraints import GOODPUT
from testbed.planning.cost import CostModel
from testbed.planning.policies.star import star
from tests.planning.networks import sites, view_of, views

pytestmark = pytest.mark.pure


def chain(*names: str) -> Tree:
    """A chain whose root is the last name."""
    parents = dict(itertools.pairwise(names))
    return Tree(names[-1], parents, parents)


def test_a_star_s_round_is_its_server_s_link_and_one_round_trip() -> None:
    view = view_of(sites(("a", "b", 50), ("b", "c", 20), delay=0.03), {}, model_bytes=1_000_000)
    cost = predict(Plan(0, view.names, (star(view.names, "a-w0"),), chunk_bytes=1024), view)
    assert cost.bottleneck in {"b->c", "c->b"}  # 20 Mbit/s once; a-b carries two copies at 50
    assert cost.drain_s == pytest.approx(8e6 / (20e6 * GOODPUT))
    # the deepest way, c to a, up and down: 3 chunk times at 20 Mbit/s and LAN count little
    assert cost.fill_s == pytest.approx(2 * 0.0602 + 8 * 1024 / (20e6 * GOODPUT))


def test_edges_that_share_a_link_add_up_on_it() -> None:
    view = view_of(sites(("a", "b", 50)), {"b": 4}, model_bytes=1_000_000)
    loads = CostModel(view).loads(Plan(0, view.names, (star(view.names, "a-w0"),)))
    assert loads["b->a"] == 4_000_000 == loads["a->b"]
    assert loads["b-w0->b"] == 1_000_000


def test_a_chain_fills_chunk_by_chunk() -> None:
    """n chunks over h equal hops take (n + h − 1) chunk times."""
    view = view_of(sites(("a", "b", 10), ("b", "c", 10), delay=0.0), {}, model_bytes=8 * 8192)
    plan = Plan(0, view.names, (chain("a-w0", "b-w0", "c-w0"),), chunk_bytes=8192)
    chunk_s = 8 * 8192 / (10e6 * GOODPUT)
    assert predict(plan, view).seconds == pytest.approx((8 + 4 - 1) * chunk_s, rel=0.02)  # LAN delays: 1.6 ms


def test_an_edge_that_is_not_there_makes_the_plan_impossible() -> None:
    view = view_of(sites(("a", "b", 50), ("b", "c", 20)), {})
    plan = make_policy("star").plan(view)
    cut = replace(view.links["b->c"], up=False)
    broken = View.of_network(view.members, {**view.links, "b->c": cut}, view.routes, view.model_bytes)
    assert predict(plan, broken).seconds == float("inf")
    assert "c-w0" in predict(plan, broken).bottleneck


def test_without_routes_an_edge_is_its_own_capacity() -> None:
    view = view_of(sites(("a", "b", 50)), {}, model_bytes=1_000_000)
    edges = {pair: Edge(4e6, 0.1, 0.0, "measured") for pair in view.edges}
    bare = View(view.members, {}, {}, edges, view.model_bytes, knowledge="measured")
    cost = predict(Plan(0, view.names, (star(view.names, "a-w0"),), chunk_bytes=1024), bare)
    assert cost.drain_s == pytest.approx(8e6 / (4e6 * GOODPUT))
    assert cost.fill_s == pytest.approx(0.1, rel=0.05)


def test_an_edge_measured_below_its_links_limits_itself() -> None:
    view = view_of(sites(("a", "b", 50)), {}, model_bytes=1_000_000)
    slow = {**view.edges, ("b-w0", "a-w0"): Edge(10e6, 0.02, 1.0, "measured")}
    cost = predict(make_policy("star", {"server": "a-w0"}).plan(view), replace(view, edges=slow))
    assert cost.bottleneck == "b-w0=>a-w0"


@given(views(), st.sampled_from(policy_names()))
def test_slower_links_never_make_a_round_faster(view: View, name: str) -> None:
    plan = make_policy(name).plan(view)
    slower = {key: replace(link, rate_bps=link.rate_bps / 3) for key, link in view.links.items()}
    after = View.of_network(view.members, slower, view.routes, view.model_bytes)
    assert predict(plan, after).seconds >= predict(plan, view).seconds
