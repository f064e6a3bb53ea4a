"""Packing: near the bound, few and shallow trees, and its options."""

from __future__ import annotations

from dataclasses import replace

import highspy
import pytest
from hypothesis import given, settings

from benchmarks.support.networks import netstorm9
from benchmarks.support.networks import view as netstorm9_view
from testbed.plan import Plan
from testbed.planning import Edge, PolicyError, View, make_policy, policy_names, predict, simulate
from testbed.planning.bound import bound
from testbed.planning.constraints import GOODPUT, Constraints
from testbed.planning.overlay import Overlay
from testbed.planning.pack import EXACT, pack
from testbed.planning.policies.packing import TOLERANCE
from testbed.planning.tree_choice import ALIKE, FEWER, TreeChoice
from tests.planning.networks import sites, view_of, views

pytestmark = pytest.mark.pure

#: The choice of few, shallow trees is greedy, and a chunk size costs up to `chunk.TOLERATED`: on small networks with
#: long delays a single tree of another policy was seen to be 10 % quicker.
AS_FAST = 1.25


#: A model that is less than a chunk is sliced finer by a ring than packing's cost knows.
SEVERAL_CHUNKS = 1_000_000


def test_the_solver_prints_nothing(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """HiGHS 1.16 prints its version when callbacks are enabled, if output is not off by then."""
    off = []

    def enable(highs: highspy.Highs) -> None:
        off.append(not highs.getOptionValue("output_flag")[1])

    monkeypatch.setattr(highspy.Highs, "enableCallbacks", enable)
    make_policy("packing").plan(netstorm9_view(netstorm9(4), SEVERAL_CHUNKS))
    assert off and all(off)
    assert capfd.readouterr().out == ""


@pytest.mark.long
@settings(max_examples=25, derandomize=True)
@given(views())
def test_it_is_predicted_to_be_as_fast_as_any_other(view: View) -> None:
    view = replace(view, model_bytes=SEVERAL_CHUNKS + view.model_bytes)
    names = [name for name in policy_names() if name not in ("auto", "packing")]
    others = [predict(make_policy(name).plan(view), view).seconds for name in names]
    assert predict(make_policy("packing").plan(view), view).seconds <= AS_FAST * min(others)


@settings(max_examples=25)
@given(views())
def test_where_the_model_is_large_it_drains_at_nearly_the_bound(view: View) -> None:
    """Up to ALIKE above it, where trees that drain better wait for each other for longer than that."""
    large = replace(view, model_bytes=10**12)
    drain = predict(make_policy("packing").plan(large), large).drain_s
    assert drain <= bound(large).seconds * (1 + TOLERANCE) * (1 + ALIKE) * (1 + EXACT)


@settings(max_examples=20)
@given(views())
def test_its_rates_fit_into_the_capacities(view: View) -> None:
    if len(view.members) == 1:
        return
    overlay = Overlay(view.names, Constraints.of(view))
    packed = pack(overlay)
    load = 0 * overlay.goodput
    for tree, rate in zip(packed.trees, packed.rates_bps, strict=True):
        load[tree.names] += tree.uses * rate / overlay.unit_bps
    assert (load <= overlay.goodput * (1 + 1e-6)).all()
    assert packed.rate_bps <= packed.upper_bps * (1 + 1e-9) and packed.gap <= EXACT


def square() -> View:
    return view_of(sites(("a", "b", 50), ("b", "c", 50), ("c", "d", 50), ("a", "d", 50), delay=0.05), {})


def depth(plan: Plan) -> int:
    def hops(member: str, parents: dict[str, str]) -> int:
        return 1 + hops(parents[member], parents) if member in parents else 0

    return max(hops(m, dict(of)) for tree in plan.trees for of in (tree.reduce, tree.broadcast) for m in plan.members)


def test_a_small_model_gets_shallow_trees_and_a_large_one_many() -> None:
    small = make_policy("packing").plan(replace(square(), model_bytes=10_000))
    large = make_policy("packing").plan(replace(square(), model_bytes=10**9))
    assert depth(small) <= 2 < depth(large)
    assert len(small.trees) < len(large.trees)


def test_of_plans_predicted_alike_the_one_that_waits_least_is_taken() -> None:
    """NetStorm's nine sites: the plans in the choice load links alike, and differ by a tenth in the simulator."""
    view = netstorm9_view(netstorm9(4), 2_400_000)
    limits = Constraints.of(view)
    good = TreeChoice(view, limits, pack(Overlay(view.names, limits), TOLERANCE)).good()
    seconds = [simulate(Plan(0, view.names, tuple(trees), 32 * 1024), view).seconds for trees in good]
    taken = simulate(replace(make_policy("packing").plan(view), chunk_bytes=32 * 1024), view).seconds
    assert len(good) > 1 and taken <= min(seconds) * (1 + 3 * FEWER)


@pytest.mark.filterwarnings("error")
def test_known_trees_that_make_no_pair_are_a_beginning_too() -> None:
    view = view_of(sites(("a", "b", 20), ("b", "c", 20), ("c", "a", 20)), {})
    overlay = Overlay(view.names, Constraints.of(view))
    begun = pack(overlay, known=[overlay.directed_tree(0, True, (0, 0, 0))])
    assert begun.upper_bps == pytest.approx(pack(overlay).upper_bps, rel=2 * EXACT)


def test_what_members_may_send_limits_it() -> None:
    """In the square each member relays to others; at 25 Mbit/s out and one member's update to pass on it can't."""
    view = replace(square(), model_bytes=10**9)
    free, limited = (make_policy("packing", options).plan(view) for options in ({}, {"egress_bps": 25e6}))

    def sent(plan: Plan) -> float:
        loads: dict[str, float] = {}
        for source, _, tree in plan.edges():
            loads[source] = loads.get(source, 0.0) + plan.trees[tree].share
        return max(loads.values())

    assert sent(limited) <= sent(free) + 1e-9
    capped = Constraints.of(view).with_members(25e6, None)
    assert capped.goodput_bps["a-w0=>"] == 25e6 * GOODPUT
    assert pack(Overlay(view.names, capped)).rate_bps < pack(Overlay(view.names, Constraints.of(view))).rate_bps


def test_measured_knowledge_takes_each_edge_s_rate_as_its_own() -> None:
    """Between two sites of three members all edges share one link; who does not know it shares it three ways."""
    view = view_of(sites(("a", "b", 10)), {"a": 3, "b": 3}, model_bytes=10**9)
    oracle, measured = (make_policy("packing", {"knowledge": k}).plan(view) for k in ("oracle", "measured"))
    assert predict(oracle, view).seconds < predict(measured, view).seconds
    bare = View(view.members, {}, {}, {pair: Edge(e.rate_bps, e.rtt_s) for pair, e in view.edges.items()}, 10**9)
    assert make_policy("packing").plan(bare).trees == measured.trees


def test_replanning_begins_with_the_plan_in_force() -> None:
    view = replace(square(), model_bytes=10**9)
    policy = make_policy("packing")
    last = policy.plan(view)
    slower = {**view.links, "a->b": replace(view.links["a->b"], rate_bps=20e6)}
    after = View.of_network(view.members, slower, view.routes, view.model_bytes)
    again = policy.replan(after, last)
    assert predict(again, after).seconds <= predict(policy.plan(after), after).seconds * 1.02
    down = {name: replace(link, up="b" not in name.split("->")) for name, link in view.links.items()}
    gone = View.of_network(view.members, down, view.routes, view.model_bytes)
    with pytest.raises(PolicyError):
        policy.replan(gone, last)
