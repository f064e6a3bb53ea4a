from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given

from testbed.planning.view import Edge, PhysicalLink, View, ViewError
from tests.planning.networks import sites, view_of, views

pytestmark = pytest.mark.pure

EDGE = {"rate_bps": 1e6, "rtt_s": 0.1, "age_s": None, "source": "declared"}
MEMBER = {"name": "a-w0", "site": "a", "speed": 1.0, "uplink": "a-w0->a", "downlink": "a->a-w0"}


@given(views())
def test_json_brings_back_the_same_view(view: View) -> None:
    assert View.from_json(json.loads(json.dumps(view.to_json()))) == view


def test_an_edge_has_its_path_s_slowest_rate_and_both_ways_delay() -> None:
    view = view_of(sites(("a", "b", 50), ("b", "c", 20), delay=0.03), {})
    edge = view.edges["a-w0", "c-w0"]
    assert edge.rate_bps == 20e6
    assert edge.rtt_s == pytest.approx(2 * (0.03 + 0.03 + 2 * 1e-4))
    assert edge.age_s is None and edge.source == "declared"


def test_a_link_that_is_down_takes_its_pairs_edges_in_both_directions() -> None:
    view = view_of(sites(("a", "b", 50), ("b", "c", 20)), {})
    down = {**view.links, "a->b": replace(view.links["a->b"], up=False)}
    cut = View.of_network(view.members, down, view.routes, view.model_bytes)
    assert set(cut.edges) == {("b-w0", "c-w0"), ("c-w0", "b-w0")}


def test_members_that_can_t_reach_each_other_have_no_edge() -> None:
    view = view_of(sites(("a", "b", 50), ("b", "c", 20)), {})
    kept = view.without({"a-w0": {"c-w0"}, "gone": {"a-w0"}})
    assert view.edges.keys() - kept.edges.keys() == {("a-w0", "c-w0"), ("c-w0", "a-w0")}


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({"members": []}, (None, "members")),
        ({"model_bytes": 0}, (None, "model_bytes")),
        ({"knowledge": "guessed"}, (None, "knowledge")),
        ({"version": 9}, (None, "version")),
        ({"links": {}}, ("unknown-link", "routes")),
        ({"links": {"a->b": {"rate_bps": 1e6, "delay_s": float("inf"), "up": True}}}, (None, "links")),
        ({"links": {"a->b": {"rate_bps": float("inf"), "delay_s": 0.1, "up": True}}}, (None, "links")),
        ({"edges": [{"from": "a-w0", "to": "b-w0", **EDGE, "rtt_s": float("inf")}]}, (None, "edges")),
        ({"edges": [{"from": "a-w0", "to": "b-w0", **EDGE, "age_s": "new"}]}, (None, "edges")),
        ({"edges": [{"from": "a-w0", "to": "b-w0", **EDGE, "rate_bps": float("inf")}]}, (None, "edges")),
        ({"edges": [{"from": "a-w0", "to": "b-w0", **EDGE, "source": "guessed"}]}, (None, "edges")),
        ({"edges": [{"from": "a-w0", "to": "x", **EDGE}]}, ("unknown-member", None)),
        ({"routes": 3}, (None, "routes")),
        ({"members": [MEMBER | {"speed": 0}]}, (None, "members")),
        ({"members": [MEMBER | {"speed": "fast"}]}, (None, "members")),
        ({"members": [MEMBER | {"site": ["a"]}]}, (None, "members")),
        ({"model_bytes": "many"}, ("not-a-view", None)),
        ({"model_bytes": float("nan")}, ("not-a-view", None)),
        ({"at_s": "now"}, ("not-a-view", None)),
    ],
)
def test_what_is_no_view_is_refused(change: dict, broken: tuple[str | None, str | None]) -> None:
    value = view_of(sites(("a", "b", 50)), {}).to_json()
    with pytest.raises(ViewError) as caught:
        View.from_json({**value, **change})
    assert (caught.value.rule, caught.value.field) == broken


def test_an_edge_over_a_down_link_is_refused() -> None:
    view = view_of(sites(("a", "b", 50)), {})
    down = {**view.links, "a->b": PhysicalLink(1e6, 0, up=False)}
    with pytest.raises(ViewError) as caught:
        replace(view, links=down)
    assert caught.value.rule == "down"


def test_an_edge_without_a_rate_is_refused() -> None:
    view = view_of(sites(("a", "b", 50)), {})
    with pytest.raises(ViewError) as caught:
        replace(view, edges={("a-w0", "b-w0"): Edge(0, 0.1)})
    assert caught.value.rule == "rate"
