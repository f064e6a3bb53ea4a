"""The simulator against rounds that can be worked out by hand, and against the fluid prediction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.plan import Plan, Route, Tree
from testbed.planning import SimulationError, View, make_policy, policy_names, predict, simulate
from testbed.planning.bound import bound
from testbed.planning.constraints import GOODPUT
from testbed.planning.events import max_min
from testbed.planning.policies.star import star
from testbed.planning.simulate import HOPS, affordable, coarse, tried_s
from tests.planning.networks import sites, view_of, views
from tests.planning.test_cost import chain

pytestmark = pytest.mark.pure

CHUNK = 8192

#: The part by which the coarser chunks of a trial change a round, and the prediction does not.
COARSE = 0.02

PLAN = Plan(0, ("a", "b", "c"), (Tree("a", {"b": "a", "c": "a"}, {"b": "a", "c": "a"}),))

FOUR = view_of(sites(("a", "b", 50), ("b", "c", 20), ("c", "d", 80), ("a", "d", 30), delay=0.03), {})


def seconds(payload: float, mbps: float) -> float:
    return 8 * payload / (mbps * 1e6 * GOODPUT)


def test_over_one_link_the_model_goes_there_while_the_mean_comes_back() -> None:
    view = view_of(sites(("a", "b", 10), delay=0.05), {}, model_bytes=10 * CHUNK)
    done = simulate(Plan(0, view.names, (star(view.names, "a-w0"),), CHUNK), view)
    lone_delay = 0.05 + 2e-4
    assert done.seconds == pytest.approx(seconds(11 * CHUNK, 10) + 2 * lone_delay, rel=1e-6)
    assert done.edge_bytes == {("a-w0", "b-w0"): 10 * CHUNK, ("b-w0", "a-w0"): 10 * CHUNK}
    assert done.finished_s["a-w0"] == pytest.approx(seconds(10 * CHUNK, 10) + lone_delay)


def test_a_chain_fills_chunk_by_chunk() -> None:
    """n chunks over h equal hops take (n + h − 1) chunk times: here 8 over 2 up and 2 down."""
    view = view_of(sites(("a", "b", 10), ("b", "c", 10), delay=0.0), {}, model_bytes=8 * CHUNK)
    done = simulate(Plan(0, view.names, (chain("a-w0", "b-w0", "c-w0"),), CHUNK), view)
    assert done.seconds == pytest.approx(seconds((8 + 4 - 1) * CHUNK, 10), rel=0.02)  # LAN delays: 0.8 ms


def test_a_link_s_codec_shortens_what_it_carries() -> None:
    view = view_of(sites(("a", "b", 10), ("b", "c", 80), delay=0.0), {}, model_bytes=64 * CHUNK)
    plan = Plan(0, view.names, (chain("a-w0", "b-w0", "c-w0"),), CHUNK)
    coded = replace(plan, link_codecs={f"{one}-w0->{other}-w0": "int8" for one, other in ("ab", "ba", "bc", "cb")})
    assert simulate(coded, view).seconds == pytest.approx(0.254 * simulate(plan, view).seconds, rel=0.05)
    one_way = replace(plan, link_codecs={"a-w0->b-w0": "int8"})
    assert simulate(coded, view).seconds < simulate(one_way, view).seconds <= simulate(plan, view).seconds


def test_a_star_s_members_share_its_server_s_link() -> None:
    view = view_of(sites(("a", "b", 12), delay=0.0), {"b": 3}, model_bytes=6 * CHUNK)
    done = simulate(Plan(0, view.names, (star(view.names, "a-w0"),), CHUNK), view)
    # Three flows of 4 Mbit/s each way; the mean of a chunk goes to three once it has come from three.
    assert done.seconds == pytest.approx(seconds(3 * 7 * CHUNK, 12), rel=0.02)


def test_a_key_is_broadcast_when_it_is_whole() -> None:
    view = view_of(sites(("a", "b", 10), delay=0.0), {}, model_bytes=8 * CHUNK)
    one = Plan(0, view.names, (star(view.names, "a-w0", keys=(1.0,)),), CHUNK)
    two = Plan(0, view.names, (star(view.names, "a-w0", keys=(0.5, 0.5)),), CHUNK)
    assert simulate(one, view).seconds == pytest.approx(seconds(16 * CHUNK, 10), rel=0.02)
    assert simulate(two, view).seconds == pytest.approx(seconds(12 * CHUNK, 10), rel=0.02)
    assert predict(one, view).drain_s == pytest.approx(seconds(16 * CHUNK, 10))
    assert predict(two, view).drain_s == pytest.approx(seconds(12 * CHUNK, 10))


def test_a_member_that_begins_late_ends_the_round_late() -> None:
    view = view_of(sites(("a", "b", 10), delay=0.0), {}, model_bytes=8 * CHUNK)
    plan = Plan(0, view.names, (star(view.names, "a-w0"),), CHUNK)
    assert simulate(plan, view, {"b-w0": 5.0}).seconds == pytest.approx(simulate(plan, view).seconds + 5.0)


def test_a_member_that_is_done_early_sends_ahead() -> None:
    """A star whose model is one key: b has its mean long before c, and pushes the next round while c still pulls."""
    view = view_of(sites(("a", "b", 40), ("a", "c", 10), delay=0.0), {}, model_bytes=8 * CHUNK)
    plan = Plan(0, view.names, (star(view.names, "a-w0", keys=(1.0,)),), CHUNK)
    alone, several = simulate(plan, view), simulate(plan, view, rounds=4)
    assert several.finished_s == pytest.approx(alone.finished_s)
    assert several.edge_bytes == pytest.approx({pair: 4 * size for pair, size in alone.edge_bytes.items()})
    # c pushes and pulls over a link of its own, one after the other: nothing of that overlaps.
    assert several.seconds == pytest.approx(alone.seconds, rel=1e-6)
    # Three push over 12 Mbit/s (a third of the rate each), then d pulls over 4: in that time b and c push, and d's next
    # push has the 12 Mbit/s for itself. 2 + 2 becomes 2 + 2/3.
    graph = sites(("a", "b", 12), ("b", "c", 40), ("b", "d", 40), delay=0.0)
    graph["a"]["b"]["rates"], graph["b"]["d"]["rates"] = (40e6, 12e6), (4e6, 40e6)
    shared = view_of(graph, {}, model_bytes=8 * CHUNK)
    plan = Plan(0, shared.names, (star(shared.names, "a-w0", keys=(1.0,)),), CHUNK)
    ratio = simulate(plan, shared, rounds=4).seconds / simulate(plan, shared).seconds
    assert ratio == pytest.approx(2 / 3, abs=0.05)


def test_an_auxiliary_route_takes_over_what_waits() -> None:
    graph = sites(("a", "b", 2), ("a", "c", 20), ("c", "b", 20), delay=0.0)
    graph["a"]["b"]["delay"] = 0.0
    view = view_of(graph, {}, model_bytes=64 * CHUNK)
    edges = {**view.edges}
    parents = {"b-w0": "a-w0", "c-w0": "a-w0"}
    slow = Plan(0, view.names, (Tree("a-w0", parents, parents),), CHUNK)
    ways = (Route("b-w0", "a-w0", ("c-w0",)), Route("a-w0", "b-w0", ("c-w0",)))
    helped = replace(slow, auxiliary=ways)
    direct = replace(view, routes={**view.routes, **_direct(view)}, edges=edges)
    before, after = simulate(slow, direct), simulate(helped, direct)
    assert after.seconds < before.seconds / 2
    assert after.edge_bytes["c-w0", "a-w0"] > before.edge_bytes["c-w0", "a-w0"]
    assert after.edge_bytes["b-w0", "a-w0"] + after.edge_bytes["b-w0", "c-w0"] == 64 * CHUNK


def test_an_auxiliary_route_that_is_full_beyond_its_first_hop_takes_no_more() -> None:
    """Each of a's two ways to b carries its part: the way over c carries what the slow link behind c lets through."""
    graph = sites(("a", "b", 4), ("a", "c", 400), ("c", "b", 2), delay=0.0)
    view = view_of(graph, {}, model_bytes=64 * CHUNK)
    direct = replace(view, routes={**view.routes, **_direct(view)})
    up = {"a-w0": "b-w0", "c-w0": "b-w0"}
    plan = Plan(0, view.names, (Tree("b-w0", up, up),), CHUNK, auxiliary=(Route("a-w0", "b-w0", ("c-w0",)),))
    sent = simulate(plan, direct).edge_bytes
    aside = sent["a-w0", "c-w0"]
    assert 0 < aside < sent["a-w0", "b-w0"] / 2
    assert aside + sent["a-w0", "b-w0"] == 64 * CHUNK


def _direct(view: View) -> dict[tuple[str, str], tuple[str, ...]]:
    """Routes over the slow link between a and b, whatever the routing prefers."""
    there = ("a-w0->a", "a->b", "b->b-w0")
    back = ("b-w0->b", "b->a", "a->a-w0")
    return {("a-w0", "b-w0"): there, ("b-w0", "a-w0"): back}


def test_an_edge_that_is_not_there_is_an_error() -> None:
    view = view_of(sites(("a", "b", 10)), {})
    plan = Plan(0, view.names, (star(view.names, "a-w0"),), CHUNK)
    with pytest.raises(SimulationError):
        simulate(plan, replace(view, edges={}))


@settings(max_examples=20)
@given(views(max_sites=4, max_per_site=2), st.sampled_from(policy_names()))
def test_no_round_is_shorter_than_the_bound(view: View, name: str) -> None:
    view = replace(view, model_bytes=4 * (1 + view.model_bytes % 100_000))
    plan = make_policy(name).plan(view)
    done = simulate(plan, view)
    assert done.seconds >= bound(view).seconds * (1 - 1e-6)
    assert set(done.finished_s) == set(view.names)


@given(st.integers(0, 2**32))
def test_fair_rates_leave_no_flow_that_could_have_more(seed: int) -> None:
    """Max-min: every flow has a full capacity on its route where no other flow has more."""
    draw = np.random.default_rng(seed)
    capacities = draw.uniform(1, 10, 6)
    routes = [draw.choice(6, draw.integers(1, 4), replace=False).tolist() for _ in range(9)]
    flows = np.flatnonzero(draw.random(9) < 0.8).tolist()
    rates = max_min({flow: routes[flow] for flow in flows}, dict(enumerate(capacities)))
    load = [sum(rate for flow, rate in rates.items() if link in routes[flow]) for link in range(6)]
    assert all(used <= has * (1 + 1e-9) for used, has in zip(load, capacities, strict=True))
    for flow, rate in rates.items():
        full = [link for link in routes[flow] if load[link] >= capacities[link] * (1 - 1e-9)]
        assert any(
            all(rate >= other * (1 - 1e-9) for peer, other in rates.items() if link in routes[peer]) for link in full
        )


@pytest.mark.parametrize("policy", ["mst", "netstorm", "packing", "ring"])
@pytest.mark.parametrize("rounds", [1, 3])
def test_a_trial_with_coarse_chunks_says_what_the_whole_simulation_does(policy: str, rounds: int) -> None:
    large = replace(FOUR, model_bytes=40_000_000)
    plan = make_policy(policy).plan(large)
    assert plan.chunk_bytes < large.model_bytes / 128
    assert tried_s(plan, large, rounds) == pytest.approx(simulate(plan, large, rounds=rounds).seconds, rel=COARSE)


def test_a_trial_of_a_small_model_is_the_simulation() -> None:
    small = replace(FOUR, model_bytes=100_000)
    plan = make_policy("netstorm").plan(small)
    assert tried_s(plan, small) == pytest.approx(simulate(plan, small).seconds)


def test_a_single_member_takes_no_time() -> None:
    alone = FOUR.among({"a-w0"})
    assert tried_s(make_policy("star").plan(alone), alone) == 0


def test_sixteen_members_may_be_tried_and_forty_not() -> None:
    line = view_of(sites(*((f"s{i}", f"s{i + 1}", 50.0) for i in range(39))), {})
    assert affordable(line.among(set(line.names[:16])))
    assert not affordable(line)


def test_a_small_model_keeps_its_chunks() -> None:
    assert coarse(PLAN, 8 * PLAN.chunk_bytes) == PLAN


def test_a_large_model_is_cut_into_as_many_chunks_as_can_be_simulated() -> None:
    model_bytes = 10**9
    chunk_bytes = coarse(PLAN, model_bytes).chunk_bytes
    assert chunk_bytes % 8 == 0
    assert 4 * model_bytes / chunk_bytes == pytest.approx(HOPS, rel=0.01), "four hops"
