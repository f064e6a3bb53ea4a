from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.planning import PolicyError, View, make_policy, policy_names, predict
from tests.planning.networks import sites, view_of, views

pytestmark = pytest.mark.pure


@settings(deadline=None)  # cpn searches: on a busy machine longer than hypothesis lets an example take
@given(views(), st.sampled_from(policy_names()))
def test_every_policy_plans_for_every_connected_view(view: View, name: str) -> None:
    plan = make_policy(name).plan(view)  # Plan itself refuses what does not span
    assert plan.members == view.names
    assert plan.epoch == 0
    assert plan.policy == name or name == "auto"  # which leaves the name of who made it
    assert all((source, target) in view.edges for source, target, _ in plan.edges())
    assert predict(plan, view).seconds < float("inf")


@given(views(max_sites=4), st.sampled_from(policy_names()))
def test_a_policy_is_a_function(view: View, name: str) -> None:
    again = View.from_json(view.to_json())
    assert make_policy(name).plan(view) == make_policy(name).plan(again)


def test_an_unknown_policy_is_told_the_known_ones() -> None:
    with pytest.raises(PolicyError) as caught:
        make_policy("best")
    assert (caught.value.field, caught.value.given) == ("policy", "best")


def test_an_unknown_option_is_told_the_known_ones() -> None:
    with pytest.raises(PolicyError, match="keys, placement, server, servers"):
        make_policy("star", {"root": "a"})
    with pytest.raises(PolicyError) as caught:
        make_policy("mst", {"root": "a"})
    assert (caught.value.rule, caught.value.given) == ("unknown-option", ("root",))


def test_star_takes_the_named_server_and_refuses_a_stranger() -> None:
    view = view_of(sites(("a", "b", 50), ("b", "c", 20)), {})
    assert make_policy("star", {"server": "c-w0"}).plan(view).trees[0].root == "c-w0"
    with pytest.raises(PolicyError) as caught:
        make_policy("star", {"server": "x"}).plan(view)
    assert (caught.value.field, caught.value.given) == ("server", "x")


def test_star_places_its_server_in_the_middle() -> None:
    view = view_of(sites(("a", "b", 50), ("b", "c", 50)), {})
    assert make_policy("star").plan(view).trees[0].root == "b-w0"


def test_mst_goes_around_a_slow_link() -> None:
    view = view_of(sites(("a", "b", 50), ("b", "c", 50), ("a", "c", 5)), {})
    tree = make_policy("mst").plan(view).trees[0]
    assert tree.root == "b-w0"
    assert tree.reduce == {"a-w0": "b-w0", "c-w0": "b-w0"} == tree.broadcast


def test_mst_uses_a_site_s_uplink_once() -> None:
    view = view_of(sites(("a", "b", 50)), {"a": 3, "b": 3})
    crossing = [(u, v) for u, v, _ in make_policy("mst").plan(view).edges() if u[0] != v[0]]
    assert len(crossing) == 2


def test_hierarchical_crosses_the_wan_between_gateways_only() -> None:
    view = view_of(sites(("a", "b", 50), ("b", "c", 50), ("a", "c", 50)), {"a": 3, "b": 2, "c": 3})
    edges = make_policy("hierarchical").plan(view).edges()
    ends = {end for u, v, _ in edges if u[0] != v[0] for end in (u, v)}
    assert len(ends) == 3


def test_hierarchical_goes_around_a_slow_edge_between_sites() -> None:
    view = view_of(sites(("a", "b", 50), ("b", "c", 50), ("a", "c", 5)), {})
    assert make_policy("hierarchical").plan(view).trees[0].reduce == {"a-w0": "b-w0", "c-w0": "b-w0"}


@pytest.mark.parametrize("name", policy_names())
def test_members_without_edges_are_an_error(name: str) -> None:
    view = view_of(sites(("a", "b", 50)), {})
    alone = View(view.members, view.links, view.routes, {}, view.model_bytes)
    with pytest.raises(PolicyError, match=name):
        make_policy(name).plan(alone)


@pytest.mark.parametrize("name", policy_names())
def test_a_small_model_over_slow_links_gets_small_chunks(name: str) -> None:
    graph = sites(("a", "b", 10), ("b", "c", 10), ("c", "d", 10), delay=0.0)
    small = make_policy(name).plan(view_of(graph, {}, model_bytes=500_000))
    large = make_policy(name).plan(view_of(graph, {}, model_bytes=200_000_000))
    assert small.chunk_bytes < large.chunk_bytes


@pytest.mark.parametrize(
    ("name", "options", "field"),
    [
        ("star", {"servers": 0}, "servers"),
        ("star", {"placement": "middle"}, "placement"),
        ("star", {"keys": "layers"}, "keys"),
        ("star", {"keys": [10, 0]}, "keys"),
        ("star", {"keys": 1000}, "keys"),
        ("star", {"server": "a-w0", "servers": 2}, "servers"),
        ("mlnet", {"arity": 0}, "arity"),
        ("ring", {"order": "random"}, "order"),
        ("hips", {"period": 1.5}, "period"),
        ("netstorm", {"auxiliary": 1}, "auxiliary"),
        ("packing", {"knowledge": "guessed"}, "knowledge"),
        ("packing", {"egress_bps": -1}, "egress_bps"),
        ("packing", {"egress_bps": "50e6"}, "egress_bps"),
        ("packing", {"egress_bps": float("inf")}, "egress_bps"),
        ("tsengine", {"seed": -1}, "seed"),
        ("tsengine", {"arrivals": 5}, "arrivals"),
        ("auto", {"also": 5}, "also"),
        ("auto", {"also": "mst"}, "also"),
        ("auto", {"also": [None]}, "also"),
        ("cpn", {"step_s": "60ms"}, "step_s"),
        ("cpn", {"skew": None}, "skew"),
        ("cpn", {"labels": {"a-w0": 10}}, "labels"),
        ("cpn", {"labels": {"a-w0": ["many"]}}, "labels"),
    ],
)
def test_an_option_that_makes_no_sense_is_told_what_does(name: str, options: dict[str, Any], field: str) -> None:
    with pytest.raises(PolicyError, match=f"^{name}: ") as caught:
        make_policy(name, options)
    assert (caught.value.field, caught.value.given) == (field, options[field])
