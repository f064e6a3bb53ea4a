"""The plans of the policies, on networks small enough to draw."""

from __future__ import annotations

from dataclasses import replace

import pytest

from testbed.planning import View, make_policy, predict
from testbed.planning.policies.star import ALEXNET, BIG_ARRAY, keys_of_servers
from tests.planning.networks import sites, view_of

pytestmark = pytest.mark.pure

LINE = view_of(sites(("a", "b", 50), ("b", "c", 50), ("c", "d", 10)), {})


def test_a_star_s_server_is_placed() -> None:
    seconds = {
        place: predict(make_policy("star", {"placement": place}).plan(LINE), LINE).seconds
        for place in ("best", "mean", "worst")
    }
    assert seconds["best"] < seconds["mean"] < seconds["worst"]


def test_arrays_go_to_servers_as_mxnet_s_do() -> None:
    """Array k to server 9973·k mod 4 = k mod 4 (9973 = 4 · 2493 + 1); a big one is cut over all."""
    assert keys_of_servers((10, 20, 30, 40, BIG_ARRAY, 60), 4) == [
        [10.0, 250_000.0],
        [20.0, 250_000.0, 60.0],
        [30.0, 250_000.0],
        [40.0, 250_000.0],
    ]
    assert sum(ALEXNET) == 61_100_840


def test_a_server_for_each_member_shares_the_keys() -> None:
    plan = make_policy("star", {"servers": "all", "keys": [BIG_ARRAY, 8]}).plan(LINE)
    assert sorted(tree.root for tree in plan.trees) == sorted(LINE.names)
    assert sorted(len(tree.keys) for tree in plan.trees) == [1, 1, 1, 2]
    assert sum(tree.share for tree in plan.trees) == pytest.approx(1)


def test_keys_that_are_pulled_whole_take_longer() -> None:
    def seconds(keys: object) -> float:
        return predict(make_policy("star", {"server": "b-w0", "keys": keys}).plan(LINE), LINE).seconds

    assert seconds("overlapped") < seconds("alexnet") < seconds("one")


def test_mlnet_is_a_balanced_tree_in_member_order() -> None:
    tree = make_policy("mlnet", {"arity": 2, "root": "b-w0"}).plan(LINE).trees[0]
    assert tree.reduce == {"c-w0": "b-w0", "d-w0": "b-w0", "a-w0": "c-w0"} == tree.broadcast


def test_a_ring_loads_each_of_its_edges_alike() -> None:
    plan = make_policy("ring", {"order": "naive"}).plan(LINE)
    loads: dict[tuple[str, str], float] = {}
    for source, target, tree in plan.edges():
        loads[source, target] = loads.get((source, target), 0.0) + plan.trees[tree].share
    around = [("a-w0", "b-w0"), ("b-w0", "c-w0"), ("c-w0", "d-w0"), ("d-w0", "a-w0")]
    assert loads == pytest.approx(dict.fromkeys(around, 2 * 3 / 4))


def test_two_opt_never_has_a_slower_edge_than_nearest_neighbour() -> None:
    graph = sites(
        ("a", "b", 90), ("b", "c", 80), ("c", "d", 5), ("d", "e", 70), ("e", "a", 60), ("b", "d", 50), ("c", "e", 40)
    )
    view = view_of(graph, {})

    def slowest(order: str) -> float:
        return min(view.edges[u, v].rate_bps for u, v, _ in make_policy("ring", {"order": order}).plan(view).edges())

    assert slowest("two-opt") >= max(slowest("nearest"), slowest("naive"))


def test_blueconnect_s_members_share_what_crosses_the_wan() -> None:
    view = view_of(sites(("a", "b", 50)), {"a": 3, "b": 3})
    plan = make_policy("blueconnect").plan(view)
    crossing: dict[str, float] = {}
    for source, target, tree in plan.edges():
        if source[0] != target[0]:
            crossing[source] = crossing.get(source, 0.0) + plan.trees[tree].share
    assert crossing == pytest.approx(dict.fromkeys(view.names, 1 / 3))


def test_hips_averages_in_the_sites_between_global_rounds() -> None:
    view = view_of(sites(("a", "b", 50), ("b", "c", 50)), {"a": 2, "b": 2, "c": 2})
    whole, rare = (make_policy("hips", {"period": period}).plan(view) for period in (1, 4))
    assert whole.trees == rare.trees and not whole.groups
    assert rare.period == 4
    assert [group.members for group in rare.groups] == [("a-w0", "a-w1"), ("b-w0", "b-w1"), ("c-w0", "c-w1")]
    assert whole.trees[0].reduce["a-w1"] == "a-w0"


def measured(view: View) -> View:
    return replace(view, edges={pair: replace(edge, source="measured", age_s=1.0) for pair, edge in view.edges.items()})


def test_tsengine_serves_along_the_fastest_edges_it_knows() -> None:
    """With every edge known it explores a tenth of the time; most draws send d's part over its only link once."""
    view = measured(LINE)
    trees = [make_policy("tsengine", {"server": "b-w0", "seed": seed}).plan(view).trees[0] for seed in range(20)]
    best = [tree.broadcast for tree in trees if tree.broadcast["a-w0"] == "b-w0" or tree.broadcast["c-w0"] == "b-w0"]
    assert len(best) > 10
    assert all(tree.root == "b-w0" for tree in trees)


def test_tsengine_goes_by_the_order_of_arrivals() -> None:
    options = {"server": "a-w0", "arrivals": ["d-w0", "c-w0", "b-w0", "a-w0"]}
    tree = make_policy("tsengine", options).plan(measured(LINE)).trees[0]
    assert tree.reduce["d-w0"] == "c-w0" or tree.reduce["c-w0"] == "d-w0"  # the first two that are ready
    assert tree.reduce["b-w0"] == "a-w0"


def test_tsengine_knows_all_of_the_emulators_own_view() -> None:
    oracle = replace(LINE, knowledge="oracle")
    assert make_policy("tsengine", {}).plan(oracle) == make_policy("tsengine", {}).plan(measured(LINE))


def test_tsengine_explores_what_it_does_not_know() -> None:
    plans = {str(make_policy("tsengine", {"seed": seed}).plan(LINE).trees[0].broadcast) for seed in range(20)}
    assert len(plans) > 3


def test_tsengine_draws_by_the_rates_and_not_by_the_time_of_a_view() -> None:
    def trees(views: list[View]) -> int:
        return len({str(make_policy("tsengine", {}).plan(view).trees[0].broadcast) for view in views})

    assert trees([replace(LINE, at_s=float(moment)) for moment in range(20)]) == 1
    assert trees([view_of(sites(("a", "b", 50), ("b", "c", 50), ("c", "d", rate)), {}) for rate in range(1, 20)]) > 3
