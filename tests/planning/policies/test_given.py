"""A plan that is written out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.planning import PolicyError, View, make_policy, policy_names
from tests.planning.networks import sites, view_of, views

pytestmark = pytest.mark.pure

THREE = view_of(sites(("a", "b", 50), ("b", "c", 20), ("a", "c", 5)), {})


@given(views(max_sites=4), st.sampled_from(["mst", "netstorm", "ring", "star"]))
def test_it_is_the_plan_that_another_policy_made(view: View, name: str) -> None:
    made = make_policy(name).plan(view)
    policy = make_policy("given", {"document": made.to_json()})
    policy.check(view)
    assert policy.plan(view).shape() == made.shape()


def test_members_in_another_order_are_the_view_s() -> None:
    made = make_policy("mst").plan(THREE).to_json()
    plan = make_policy("given", {"document": made | {"members": made["members"][::-1]}}).plan(THREE)
    assert plan.members == THREE.names


def test_another_plans_where_members_are_lost() -> None:
    policy = make_policy("given", {"document": make_policy("star").plan(THREE).to_json()})
    left = THREE.among(frozenset(("a-w0", "c-w0")))
    assert policy.plan(left).members == ("a-w0", "c-w0")
    with pytest.raises(PolicyError) as caught:
        policy.check(left)
    assert (caught.value.field, caught.value.given) == ("members", ("b-w0",))


def test_what_is_no_plan_is_refused_at_once_and_what_has_no_edges_where_it_plans() -> None:
    made = make_policy("star", {"server": "a-w0"}).plan(THREE).to_json()
    with pytest.raises(PolicyError) as caught:
        make_policy("given")
    assert caught.value.field == "version"
    with pytest.raises(PolicyError) as caught:
        make_policy("given", {"document": {field: value for field, value in made.items() if field != "trees"}})
    assert caught.value.field == "trees"
    with pytest.raises(PolicyError) as caught:
        make_policy("given", {"document": made | {"members": [*made["members"], "d-w0"]}})
    assert caught.value.rule == "span"
    with pytest.raises(PolicyError) as caught:
        make_policy("given", {"document": made | {"link_codecs": {"b-w0->a-w0": "int3"}}})
    assert (caught.value.field, caught.value.given) == ("codec", "int3")
    with pytest.raises(PolicyError) as caught:
        make_policy("given", {"document": made}).plan(without_edges(THREE))
    assert caught.value.rule == "no-edge"
    assert "given" not in policy_names()


def without_edges(view: View) -> View:
    """The same members, without an edge between any two."""
    return View(view.members, {}, {}, {}, view.model_bytes, view.at_s, view.knowledge)
