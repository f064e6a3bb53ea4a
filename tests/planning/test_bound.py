"""The bound against another formulation of it, and against what policies reach."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from testbed.planning import Bound, BoundError, View, make_policy, policy_names, predict
from testbed.planning.bound import bound
from testbed.planning.constraints import GOODPUT, Constraints
from testbed.planning.pack import EXACT
from tests.planning.networks import sites, view_of, views

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
    """Of one whose links are otherwise, and of one with other members."""
    alone, links = bound(view), dict(view.links)
    for name in sorted(links)[::2]:
        links[name] = replace(links[name], rate_bps=links[name].rate_bps * faster)
    for other in (replace(view, links=links), view_of(sites(("a", "b", 20)), {})):
        assert bound(view, bound(other)).seconds == pytest.approx(alone.seconds, rel=2 * EXACT)
