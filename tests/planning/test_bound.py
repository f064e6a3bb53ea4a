"""The bounds against other formulations of them, cases worked out by hand, and what policies reach."""

from __future__ import annotations

import itertools
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from testbed.plan import Plan, Tree
from testbed.planning import Bound, BoundError, View, make_policy, policy_names, predict, simulate
from testbed.planning.bound import bound, greatest_cycle_mean, least_period
from testbed.planning.constraints import GOODPUT, Constraints
from testbed.planning.pack import EXACT
from testbed.planning.policies.star import star
from tests.planning.networks import LAN, sites, view_of, views

pytestmark = pytest.mark.pure


def flow_rate(view: View) -> float:
    """The optimum as one compact LP, without trees.

    By Edmonds' branching theorem trees out of r of total rate w pack into edge rates y exactly when, for every
    member, a flow of w from r to it fits into y (each member's flow by itself). Reversed for trees into r.
    """
    limits = Constraints.of(view)
    edges = sorted(limits.drawn)
    names = sorted(limits.goodput_bps)
    count = itertools.count()
    w = {root: next(count) for root in view.names}
    kinds = list(itertools.product(view.names, ("in", "out")))
    y = {(kind, edge): next(count) for kind in kinds for edge in edges}
    flow = {
        (kind, other, edge): next(count) for kind in kinds for other in view.names if other != kind[0] for edge in edges
    }
    width = next(count)
    upper, equal = [], []
    limit = []
    for name in names:
        row = np.zeros(width)
        for (_, edge), column in y.items():
            row[column] = limits.drawn[edge].count(name)
        upper.append(row)
        limit.append(limits.goodput_bps[name] / 1e6)
    for (kind, _, edge), column in flow.items():
        row = np.zeros(width)
        row[column], row[y[kind, edge]] = 1, -1
        upper.append(row)
        limit.append(0.0)
    for (root, way), other in {(kind, other) for kind, other, _ in flow}:
        source, sink = (root, other) if way == "out" else (other, root)
        for member in view.names:
            row = np.zeros(width)
            for edge in edges:
                row[flow[(root, way), other, edge]] += (edge[0] == member) - (edge[1] == member)
            row[w[root]] = (member == sink) - (member == source)
            equal.append(row)
    gain = np.zeros(width)
    gain[list(w.values())] = -1
    solution = linprog(gain, A_ub=np.array(upper), b_ub=limit, A_eq=np.array(equal), b_eq=np.zeros(len(equal)))
    assert solution.status == 0, solution.message
    return -solution.fun * 1e6


@settings(max_examples=25)
@given(views(max_sites=3, max_per_site=1) | views(max_sites=2, max_per_site=2))
def test_it_is_the_optimum_of_the_flow_formulation(view: View) -> None:
    if len(view.members) == 1:
        assert bound(view) == Bound(0.0, float("inf"))
        return
    assert bound(view).rate_bps == pytest.approx(flow_rate(view), rel=2 * EXACT)


def test_it_is_the_optimum_of_the_flow_formulation_where_four_sites_are_meshed() -> None:
    graph = sites(("a", "b", 20), ("b", "c", 150), ("c", "d", 40), ("a", "d", 70), ("a", "c", 55), ("b", "d", 33))
    view = view_of(graph, {})
    assert bound(view).rate_bps == pytest.approx(flow_rate(view), rel=2 * EXACT)


@settings(max_examples=40)
@given(views(), st.sampled_from(policy_names()))
def test_no_policy_is_predicted_to_beat_it(view: View, name: str) -> None:
    assert predict(make_policy(name).plan(view), view).seconds >= bound(view).seconds * (1 - 1e-9)


def test_two_members_need_the_model_over_the_slower_direction() -> None:
    view = view_of(sites(("a", "b", 20)), {}, model_bytes=1_000_000)
    # Reduced at a, the model crosses each direction once: 20 Mbit/s. No root does better.
    assert bound(view).rate_bps == pytest.approx(20e6 * GOODPUT, rel=EXACT)
    assert bound(view).seconds == pytest.approx(8e6 / (20e6 * GOODPUT), rel=EXACT)


def test_three_members_in_a_triangle_share_the_model_over_all_links() -> None:
    """Six directed links of rate 1, four edge uses for each element: 6/4 at most, and symmetry attains it."""
    view = view_of(sites(("a", "b", 100), ("b", "c", 100), ("a", "c", 100)), {})
    assert bound(view).rate_bps == pytest.approx(1.5 * 100e6 * GOODPUT, rel=EXACT)


def test_members_that_nothing_connects_have_none() -> None:
    view = view_of(sites(("a", "b", 20)), {})
    with pytest.raises(BoundError):
        bound(View(view.members, view.links, view.routes, {}, view.model_bytes))


@pytest.mark.long
@settings(max_examples=30)
@given(views(), st.floats(0.5, 2.0))
def test_begun_from_the_bound_of_another_view_it_is_the_same(view: View, faster: float) -> None:
    """The earlier view has links of other rates, or other members."""
    alone, links = bound(view), dict(view.links)
    for name in sorted(links)[::2]:
        links[name] = replace(links[name], rate_bps=links[name].rate_bps * faster)
    for other in (replace(view, links=links), view_of(sites(("a", "b", 20)), {})):
        assert bound(view, bound(other)).seconds == pytest.approx(alone.seconds, rel=2 * EXACT)


#: Flows are counted in whole units, and HiGHS keeps limits to 1e-7.
WHOLE_UNITS = 1e-6

#: One way from a site to another that is 50 ms away, over both of their LANs.
WAY_S = 0.05 + 2 * LAN.delay_s


def seconds(payload: float, mbps: float) -> float:
    return 8 * payload / (mbps * 1e6 * GOODPUT)


@settings(max_examples=40)
@given(views(max_sites=4, max_per_site=2), st.sampled_from(policy_names()), st.data())
def test_no_plan_s_rounds_are_shorter(view: View, name: str, data: st.DataObject) -> None:
    """All members begin to compute at 0, so that the bound holds for the first rounds exactly, not only in the mean."""
    view = replace(view, model_bytes=4 * (1 + view.model_bytes % 100_000))
    compute_s = {name: data.draw(st.floats(0, 1)) for name in view.names}
    rounds = 6
    done = simulate(make_policy(name).plan(view), view, compute_s, rounds, compute_s)
    ended = max(done.finished_s.values()) + (rounds - 1) * done.seconds
    assert ended >= rounds * least_period(view, compute_s) * (1 - WHOLE_UNITS)


@settings(max_examples=25)
@given(views(max_sites=3, max_per_site=2), st.floats(0, 1), st.floats(1, 3), st.data())
def test_more_of_anything_takes_no_less(view: View, compute_s: float, factor: float, data: st.DataObject) -> None:
    own = {name: data.draw(st.floats(0, compute_s)) for name in view.names}
    least = least_period(view, own)
    assert least >= max(bound(view).seconds, *own.values()) * (1 - WHOLE_UNITS)
    slower = {name: link.delay_s * factor for name, link in view.links.items()}
    links = {name: replace(link, delay_s=slower[name]) for name, link in view.links.items()}
    more = (
        least_period(replace(view, model_bytes=view.model_bytes * 2), own),
        least_period(view, {name: seconds * factor for name, seconds in own.items()}),
        least_period(View.of_network(view.members, links, view.routes, view.model_bytes), own),
    )
    assert min(more) >= least * (1 - 1e-3)  # `bound` is known to a part of 1e-4


def test_two_members_compute_then_the_model_crosses() -> None:
    """Each way the last byte goes when the model is through, and comes a delay after; on average over both members."""
    view = view_of(sites(("a", "b", 20), delay=0.05), {}, model_bytes=1_000_000)
    crossing = seconds(1_000_000, 20) + WAY_S
    assert least_period(view) == pytest.approx(crossing, rel=WHOLE_UNITS)
    assert least_period(view, {"a-w0": 0.1, "b-w0": 0.3}) == pytest.approx(crossing + 0.2, rel=WHOLE_UNITS)


def test_two_trees_come_within_a_delay_of_it() -> None:
    """A tree's sums go out while the other tree's means come in, so that nothing waits for a whole round trip."""
    view = view_of(sites(("a", "b", 20), delay=0.05), {}, model_bytes=4_000_000)
    trees = tuple(replace(star(view.names, root), share=0.5) for root in view.names)
    compute_s = dict.fromkeys(view.names, 0.3)
    done = simulate(Plan(0, view.names, trees, 8192), view, rounds=4, compute_s=compute_s)
    least = least_period(view, compute_s)
    assert least * (1 - WHOLE_UNITS) <= done.seconds < least + WAY_S


def test_a_slow_computer_sets_the_pace_alone() -> None:
    """Reduced where it is, nothing else is waited for: the others' are there when it has computed."""
    view = view_of(sites(("a", "b", 100), ("b", "c", 100), delay=0.001), {}, model_bytes=4_000)
    compute_s = {"a-w0": 5.0}
    assert least_period(view, compute_s) == pytest.approx(5.0)
    done = simulate(Plan(0, view.names, (star(view.names, "a-w0"),), 8192), view, rounds=4, compute_s=compute_s)
    assert done.seconds == pytest.approx(5.0)


def test_a_small_model_goes_there_and_back() -> None:
    """The middle of a chain is where to reduce: no end is further than one way from it, and a star attains it."""
    view = view_of(sites(("a", "b", 100), ("b", "c", 100), delay=0.05), {}, model_bytes=4)
    assert least_period(view) == pytest.approx(2 * WAY_S, rel=1e-4)
    parents = {"a-w0": "b-w0", "c-w0": "b-w0"}
    plan = Plan(0, view.names, (Tree("b-w0", parents, parents),), 8192)
    assert simulate(plan, view, rounds=3).seconds == pytest.approx(least_period(view), rel=1e-4)


def test_a_delay_is_the_least_over_members_too() -> None:
    """Routes over the direct link, of 200 ms; c relays in 100."""
    graph = sites(("a", "b", 100), ("b", "c", 100), ("a", "c", 100), delay=0.05)
    view = view_of(graph, {}, model_bytes=4)
    links = {**view.links, **{name: replace(view.links[name], delay_s=0.2) for name in ("a->b", "b->a")}}
    far = View.of_network(view.members, links, view.routes, view.model_bytes)
    assert far.path_delay("a-w0", "b-w0") > 0.2
    assert least_period(far) == pytest.approx(2 * WAY_S, rel=1e-4)


def test_one_member_only_computes() -> None:
    view = view_of(sites(("a", "b", 20)), {}).among(["a-w0"])
    assert least_period(view, {"a-w0": 0.4}) == pytest.approx(0.4)
    assert least_period(view) == 0.0


def test_members_that_nothing_connects_have_no_period() -> None:
    view = view_of(sites(("a", "b", 20)), {})
    with pytest.raises(BoundError):
        least_period(View(view.members, view.links, view.routes, {}, view.model_bytes))


@given(st.integers(0, 2**32), st.integers(1, 5))
def test_the_greatest_cycle_mean_is_that_of_some_cycle(seed: int, count: int) -> None:
    weights = np.random.default_rng(seed).uniform(0, 3, (count, count))
    cycles = nx.simple_cycles(nx.complete_graph(count, nx.DiGraph))
    tours = [*cycles, *([node] for node in range(count))]
    means = [sum(weights[a, b] for a, b in zip(tour, tour[1:] + tour[:1], strict=True)) / len(tour) for tour in tours]
    assert greatest_cycle_mean(weights) == pytest.approx(max(means), abs=1e-6)
