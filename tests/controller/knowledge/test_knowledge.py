from __future__ import annotations

import random
from dataclasses import replace
from math import ceil, inf, log
from types import SimpleNamespace
from typing import cast

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.controller.knowledge.knowledge import (
    FORGOTTEN_S,
    MIN_RTT_WINDOW_S,
    RTT_SAMPLES,
    Knowledge,
    RoundTrips,
)
from testbed.controller.knowledge.network_monitor import FRESH_S, NetworkMonitor
from testbed.controller.model.actions import Tell
from testbed.controller.model.membership import AllReduceMembership
from testbed.controller.model.round_log import RoundLog
from testbed.plan import Plan
from testbed.planning import Edge, Pair, View, make_policy, policy_names, predict
from testbed.planning.policies.star import star
from testbed.protocol import PROBE_TRAINS, PeerSample, Probe
from testbed.sync.transport.arrivals import LEAST_BYTES
from testbed.telemetry.estimate import SILENCE_S
from tests.controller.fleet import transfers
from tests.planning.networks import sites, view_of, views

pytestmark = pytest.mark.pure

#: The least trains of an edge in a round, so that the edge can be measured.
TRAINS = 16

#: An edge, and its declared round trip in seconds.
EDGE = ("a", "b")
DECLARED_S = 0.1

#: Settings that draw the same examples in each run. Trains are off by chance, which misleads in 2 of 1,500 networks: in
#: these, three edges share a link of 1 Mbit/s, and the last bytes of one edge are too few to be noticed.
always_the_same = settings(max_examples=30, derandomize=True)


def measured(graph: nx.Graph, model_bytes: int = 4_000_000, **per_site: int) -> View:
    return view_of(graph, per_site, model_bytes, "measured")


def unknown(known: Knowledge, now_s: float, fresh_s: float = FRESH_S) -> dict[str, list[Pair]]:
    """Return the links that were not measured well in the last `fresh_s` seconds, and the edges that use each."""
    return {name: pairs for name, (ago_s, pairs) in known.measured_ago(now_s).items() if ago_s > fresh_s}


def with_rate(view: View, name: str, factor: float) -> View:
    links = {**view.links, name: replace(view.links[name], rate_bps=view.links[name].rate_bps * factor)}
    return View.of_network(view.members, links, view.routes, view.model_bytes, knowledge=view.knowledge)


def observe(known: Knowledge, plan: Plan, network: View, first: int, rounds: int, every_s: float = 1.0) -> None:
    chance = random.Random(first)
    for i in range(first, first + rounds):
        known.observe(*transfers(network, plan, chance, i * every_s), (i + 1) * every_s)
        known.round_over((i + 1) * every_s)


def corrected(known: Knowledge, declared: View, now_s: float) -> dict[str, float]:
    """Return the links whose rate is far from the declared one, with their part of that."""
    links = known.view(now_s).links
    parts = {name: links[name].rate_bps / link.rate_bps for name, link in declared.links.items()}
    return {name: part for name, part in parts.items() if not 0.85 < part < 1.15}


def test_members_have_their_measured_speeds() -> None:
    declared = measured(sites(("a", "b", 10)), a=2)
    known = Knowledge(declared)
    for _ in range(6):
        known.add_speeds({"a-w0": 0.25})
    assert [member.speed for member in known.view(1.0).members] == pytest.approx([0.25, 1.0, 1.0])
    known.add_speeds({"a-w0": 1.0})  # a single round counts by half
    assert 0.25 < known.view(1.0).members[0].speed < 1.0
    assert Knowledge(replace(declared, knowledge="declared")).view(1.0).members == declared.members


@always_the_same
@given(views(max_sites=4, max_per_site=2), st.sampled_from(policy_names()))
def test_a_network_as_declared_stays_as_declared(view: View, name: str) -> None:
    view = replace(view, knowledge="measured")
    plan = make_policy(name).plan(view)
    view = lasting(view, plan, 0.5)
    every_s = 2 * predict(plan, view).drain_s + 1
    known = Knowledge(view)
    observe(known, plan, view, 0, 6, every_s)
    believed_s, real_s = (predict(plan, seen).drain_s for seen in (known.view(6 * every_s), view))
    assert believed_s == pytest.approx(real_s, rel=0.1)


@always_the_same
@given(views(max_sites=4, max_per_site=2), st.sampled_from(policy_names()), st.floats(2, 6))
def test_a_drop_of_the_bottleneck_is_measured_within_two_rounds(view: View, name: str, factor: float) -> None:
    view = replace(view, knowledge="measured")
    plan = make_policy(name).plan(view)
    view = lasting(view, plan, 1.0)
    bottleneck = filled_most(plan, view)
    if bottleneck is None or not told_apart(bottleneck, plan, view):
        return
    slower = with_rate(view, bottleneck, 1 / factor)
    known = Knowledge(view)
    observe(known, plan, view, 0, 4, every_s=8)
    observe(known, plan, slower, 4, 2, every_s=8)
    real_s, believed_s = (predict(plan, seen).drain_s for seen in (slower, known.view(48.0)))
    assert believed_s == pytest.approx(real_s, rel=0.2)


def lasting(view: View, plan: Plan, seconds: float) -> View:
    """Return the view with a model of such a size that a round of the plan takes about `seconds`.

    The round takes longer if edges would otherwise send too few bytes for trains: nobody would notice the part of a
    shared link that such an edge takes.
    """
    drain_s = predict(plan, view).drain_s
    least = ceil(TRAINS * LEAST_BYTES / min((plan.trees[tree].share for _, _, tree in plan.edges()), default=1.0))
    return replace(view, model_bytes=max(int(view.model_bytes * seconds / drain_s), least)) if drain_s else view


def told_apart(name: str, plan: Plan, view: View) -> bool:
    """Return whether a path of the plan has no second link of about this rate, so that the link can be identified."""
    rate_bps = view.links[name].rate_bps
    routes = {view.routes[source, target] for source, target, _ in plan.edges()}
    return any(
        all(view.links[other].rate_bps > 1.3 * rate_bps for other in route if other != name)
        for route in routes
        if name in route
    )


def filled_most(plan: Plan, view: View) -> str | None:
    """Return the link that the plan fills most, or None if it is not between sites."""
    name = predict(plan, view).bottleneck
    access = {link for member in view.members for link in (member.uplink, member.downlink)}
    return name if name and name not in access else None


def test_a_link_that_two_members_share_is_measured_by_both() -> None:
    view = measured(sites(("a", "b", 40), ("b", "c", 40)), a=2)
    plan = Plan(0, view.names, (star(view.names, "c-w0"),))
    known = Knowledge(view)
    observe(known, plan, with_rate(view, "a->b", 0.3), 0, 4, every_s=8)
    assert corrected(known, view, 32.0) == {"a->b": pytest.approx(0.3, rel=0.1)}


def test_a_link_with_an_unsure_rate_is_worth_a_probe() -> None:
    """Successive trains have very different rates, as on a link that others use too."""
    view = measured(sites(("a", "b", 40), ("b", "c", 40)))
    plan = Plan(0, view.names, (star(view.names, "b-w0"),))
    known = Knowledge(view)
    observe(known, plan, view, 0, 3)
    train = max(transfers(view, plan, random.Random(1), 2.5)[1]["a-w0", "b-w0"])
    later = [train._replace(began_s=4.0 + 1.5 * i, seconds=(1.0, 2.5, 1.5)[i] * train.seconds) for i in range(3)]
    known.add_trains({("a-w0", "b-w0"): later})
    known.measure()
    assert unknown(known, 8.0, SILENCE_S).keys() == {"a->b"}


def test_links_of_the_plan_in_force_are_looked_at_before_others_are_probed() -> None:
    view = measured(sites(("a", "b", 40), ("b", "c", 40)))
    known = Knowledge(view)
    observe(known, Plan(0, view.names, (star(view.names, "b-w0"),)), view, 0, 3)
    membership = cast(AllReduceMembership, SimpleNamespace(present=frozenset(view.names)))
    monitor, first = (
        NetworkMonitor(its, RoundLog(lambda _: frozenset(view.names)), membership, lambda *_: None)
        for its in (known, Knowledge(view))
    )
    plan = Plan(0, ("a-w0", "b-w0"), (star(("a-w0", "b-w0"), "b-w0"),))
    asked = []
    for at_s in (3.0, 3.0 + FRESH_S, 5.0 + FRESH_S):
        told = [its for its in monitor.probes(at_s, at_s, plan) if isinstance(its, Tell)]
        asked.append(
            {(its.member, its.message.peer): its.message.trains for its in told if isinstance(its.message, Probe)}
        )
    used = {("a-w0", "b-w0"), ("b-w0", "a-w0")}
    assert asked[0] == dict.fromkeys(used, 1)
    assert set(asked[1].values()) == {PROBE_TRAINS} and not asked[1].keys() & used
    assert [asked[2][pair] for pair in used] == [1, 1], "a look has one train, however old the estimate is"
    never = [its.message for its in first.probes(3.0, 3.0, plan) if isinstance(its, Tell)]
    assert {its.trains for its in never if isinstance(its, Probe)} == {PROBE_TRAINS}, "nothing was measured yet"


def test_links_are_unknown_that_were_never_used_or_not_for_long() -> None:
    view = measured(sites(("a", "b", 40), ("b", "c", 40)))
    plan = Plan(0, view.names, (star(view.names, "b-w0"),))
    known = Knowledge(view)
    assert unknown(known, 0.0).keys() == {"a->b", "b->a", "b->c", "c->b"}
    assert set(unknown(known, 0.0)["a->b"]) == {("a-w0", "b-w0"), ("a-w0", "c-w0")}
    observe(known, plan, view, 0, 3)
    assert unknown(known, 3.0) == {}
    assert unknown(known, 3.0 + FRESH_S).keys() == {"a->b", "b->a", "b->c", "c->b"}
    assert unknown(known, 3.0 + FRESH_S, SILENCE_S) == {}
    edges = known.view(7.0).edges
    assert edges["a-w0", "b-w0"].source == "measured" and 4.0 < edges["a-w0", "b-w0"].age_s < 5.0
    assert unknown(known, 3.0 + SILENCE_S).keys() == {"a->b", "b->a", "b->c", "c->b"}
    edges = known.view(3.0 + SILENCE_S).edges
    assert edges["a-w0", "b-w0"].source == "unknown" and SILENCE_S < edges["a-w0", "b-w0"].age_s < 1.0 + SILENCE_S


def test_an_old_estimate_stands_in_for_a_while_and_then_the_declared_rate() -> None:
    view = measured(sites(("a", "b", 40)))
    known = Knowledge(view)
    observe(known, make_policy("star").plan(view), with_rate(view, "a->b", 0.25), 0, 5)
    assert corrected(known, view, 4 + FORGOTTEN_S).keys() == {"a->b"}
    assert corrected(known, view, 8 + FORGOTTEN_S) == {}
    assert known.view(8 + FORGOTTEN_S).edges["a-w0", "b-w0"] == view.edges["a-w0", "b-w0"]


def test_a_link_carries_at_least_the_rate_that_was_seen() -> None:
    view = measured(sites(("a", "b", 40)), a=1, b=1)
    faster = {**view.links, "a->b": replace(view.links["a->b"], rate_bps=4000e6)}
    network = View.of_network(view.members, faster, view.routes, view.model_bytes, knowledge="measured")
    slow_access = {**view.links, "a-w0->a": replace(view.links["a-w0->a"], rate_bps=20e6)}
    declared = View.of_network(view.members, slow_access, view.routes, 200_000_000, knowledge="measured")
    known = Knowledge(declared)
    observe(known, make_policy("star").plan(view), replace(network, model_bytes=200_000_000), 0, 3)
    assert known.view(3.0).links["a-w0->a"].rate_bps > 900e6  # really 1 Gbit/s
    assert known.view(3.0).links["a->b"].rate_bps > 900e6


def test_another_network_makes_changed_links_forgotten_and_no_others() -> None:
    view = measured(sites(("a", "b", 40), ("b", "c", 40)))
    plan = Plan(0, view.names, (star(view.names, "b-w0"),))
    slow = with_rate(with_rate(view, "a->b", 0.25), "c->b", 0.1)
    known = Knowledge(view)
    observe(known, plan, slow, 0, 8)
    assert "a->b" in corrected(known, view, 8.0) and "c->b" in corrected(known, view, 8.0)
    other = {**view.links, "a->b": replace(view.links["a->b"], rate_bps=50e6)}
    known.redeclare(other, view.routes, 8.0)
    assert known.view(8.0).links["a->b"].rate_bps == 50e6
    assert known.view(8.0).links["c->b"].rate_bps < 20e6
    assert "a->b" not in known.estimates(8.0) and "c->b" in known.estimates(8.0)


@pytest.mark.parametrize("during_a_round", [False, True])
def test_links_that_were_measured_before_the_clocks_were_set_back_are_unknown(during_a_round: bool) -> None:
    view = measured(sites(("a", "b", 40), ("a", "c", 40)))
    plan = Plan(0, view.names, (star(view.names, "a-w0"),))
    known, chance = Knowledge(view), random.Random(1)
    observe(known, plan, view, 4000, 8)
    assert not unknown(known, 4008.0).keys() & {"a->b", "a->c", "c->a"}
    if during_a_round:
        known.add_trains(transfers(view, plan, chance, 4008.0)[1])
    for second in range(100, 108):
        samples, arrivals = transfers(view, plan, chance, float(second))
        others = {pair: trains for pair, trains in arrivals.items() if "c-w0" not in pair}
        known.observe(samples, others, second + 1.0)
        known.round_over(second + 1.0)
    found = unknown(known, 108.0).keys()
    assert {"a->c", "c->a"} <= found and "a->b" not in found


def test_the_round_trip_of_the_path_before_is_not_that_of_the_new_one() -> None:
    view = measured(sites(("a", "b", 40), ("b", "c", 40)))
    plan = Plan(0, view.names, (star(view.names, "b-w0"),))
    known = Knowledge(view)
    observe(known, plan, view, 0, 3)
    before = view.edges["a-w0", "b-w0"].rtt_s
    longer = {**view.links, "a->b": replace(view.links["a->b"], delay_s=view.links["a->b"].delay_s + 0.5)}
    assert known.redeclare(longer, view.routes, 3.0) == "rates"
    assert known.redeclare(longer, view.routes, 3.0) == "none"
    observe(known, plan, view, 4, 3)  # the kernel still reports the old path's least
    edges = known.view(7.0).edges
    assert edges["a-w0", "b-w0"].rtt_s == pytest.approx(before + 0.5) and edges["a-w0", "b-w0"].source == "measured"
    assert edges["b-w0", "a-w0"].rtt_s == pytest.approx(before + 0.5) and edges["b-w0", "a-w0"].source == "measured"
    assert edges["c-w0", "b-w0"].rtt_s == pytest.approx(view.edges["c-w0", "b-w0"].rtt_s)
    late = int(3 + MIN_RTT_WINDOW_S) + 1  # a lower round trip is believed by then
    observe(known, plan, view, late, 12)
    assert known.view(late + 12.0).edges["a-w0", "b-w0"].rtt_s == pytest.approx(before)


def test_what_was_carried_before_a_link_went_down_is_not_laid_over_the_routes_around_it() -> None:
    view = measured(sites(("a", "b", 40), ("a", "c", 40), ("c", "b", 10)))
    around = measured(sites(("a", "c", 40), ("c", "b", 10)))
    plan = Plan(0, view.names, (star(view.names, "b-w0"),))
    known = Knowledge(view)
    known.redeclare(around.links, around.routes, 5.0)
    known.observe(*transfers(view, plan, random.Random(1), 1.0), 6.0)  # a round that began before
    assert known.estimates(6.0)["c->b"].rate_bps == pytest.approx(10e6, rel=0.1)
    assert "a->c" not in known.estimates(6.0)


def test_without_routes_an_edge_itself_is_measured() -> None:
    routed = measured(sites(("a", "b", 40)))
    edges: dict[Pair, Edge] = {pair: Edge(40e6, 0.02) for pair in routed.edges}
    view = View(routed.members, {}, {}, edges, routed.model_bytes, knowledge="measured")
    slow = replace(view, edges={**edges, ("b-w0", "a-w0"): Edge(10e6, 0.02)})
    plan = Plan(0, view.names, (star(view.names, "a-w0"),))
    known = Knowledge(view)
    assert unknown(known, 0.0) == {"a-w0=>b-w0": [("a-w0", "b-w0")], "b-w0=>a-w0": [("b-w0", "a-w0")]}
    observe(known, plan, slow, 0, 4)
    believed = known.view(4.0).edges
    assert believed["b-w0", "a-w0"].rate_bps == pytest.approx(10e6, rel=0.1)
    assert believed["a-w0", "b-w0"].rate_bps == pytest.approx(40e6, rel=0.1)


def test_a_transfer_too_short_to_be_timed_is_ignored() -> None:
    view = measured(sites(("a", "b", 40)), model_bytes=10_000)
    known = Knowledge(view)
    observe(known, make_policy("star").plan(view), with_rate(view, "a->b", 0.5), 0, 10)
    assert known.view(10.0).links == view.links


def test_what_was_declared_is_not_corrected_and_nothing_is_explored_then() -> None:
    view = replace(measured(sites(("a", "b", 40))), knowledge="declared")
    known = Knowledge(view)
    observe(known, make_policy("star").plan(view), with_rate(view, "a->b", 0.25), 0, 5)
    assert known.view(5.0).links == view.links and unknown(known, 50.0) == {}
    assert known.estimates(5.0)["a->b"].rate_bps == pytest.approx(10e6, rel=0.1)  # measured all the same


def test_a_queue_is_not_taken_for_distance_where_distances_were_declared() -> None:
    view = replace(measured(sites(("a", "b", 40))), knowledge="oracle")
    known = Knowledge(view)
    known.observe({("a-w0", "b-w0"): PeerSample("b-w0", 10**6, 1.0, 0.4, 0)}, {}, 1.0)
    assert known.view(1.0).edges == view.edges


def test_samples_of_edges_that_are_not_there_any_more_are_passed_over() -> None:
    view = measured(sites(("a", "b", 40)))
    known = Knowledge(view)
    known.observe({("a-w0", "z-w0"): PeerSample("z-w0", 10**6, 1.0, 0.01, 0)}, {}, 1.0)
    assert known.estimates(1.0) == {}


def test_a_link_that_falls_in_the_midst_of_a_round_is_taken_to_fall_both_ways_until_the_way_back_is_measured() -> None:
    view = measured(sites(("a", "b", 40), ("b", "c", 40)))
    plan = Plan(0, view.names, (star(view.names, "b-w0"),))
    known = Knowledge(view)
    observe(known, plan, view, 0, 3, every_s=8)
    _, arrivals = transfers(with_rate(view, "a->b", 0.25), plan, random.Random(1), 24.0)
    known.add_trains({("a-w0", "b-w0"): arrivals["a-w0", "b-w0"]})
    known.measure()
    fallen = {"a->b": pytest.approx(0.25, rel=0.1), "b->a": pytest.approx(0.25, rel=0.1)}
    assert known.fell(30.0) == {"a->b": pytest.approx(0.25, rel=0.1)}
    assert corrected(known, view, 30.0) == fallen
    came = arrivals["b-w0", "a-w0"]
    later = Knowledge(view)
    observe(later, plan, view, 0, 3, every_s=8)
    later.add_trains({("a-w0", "b-w0"): arrivals["a-w0", "b-w0"]})
    later.measure()
    later.round_over(30.0)
    assert later.fell(31.0) == {} and corrected(later, view, 31.0) == fallen, "also after that round ended"
    assert "b->a" in unknown(later, 31.0, 10.0) and "a->b" not in unknown(later, 31.0, 10.0)
    slow = came[2]._replace(began_s=came[2].began_s + 1.5, seconds=4 * came[2].seconds)
    known.add_trains({("b-w0", "a-w0"): [*came[:2], slow]})
    known.measure()
    assert corrected(known, view, 30.0) == fallen, (
        "trains under way, and one as slow as in the other direction, do not clear the suspicion"
    )
    known.add_trains({("b-w0", "a-w0"): [train._replace(began_s=train.began_s + 3) for train in came]})
    known.measure()
    assert corrected(known, view, 30.0).keys() == {"a->b"}
    paced = slow._replace(began_s=28.5, seconds=slow.seconds / 2, allowed_bytes_s=round(2 * slow.bytes / slow.seconds))
    later.add_trains({("b-w0", "a-w0"): [paced._replace(burst_bytes_s=paced.allowed_bytes_s)]})
    later.measure()
    assert corrected(later, view, 31.0).keys() == {"a->b"}, "a train that TCP paced proves twice the assumed rate"


def test_a_past_stretch_has_the_rates_of_its_time() -> None:
    """A link falls to a quarter after four rounds; the rounds before keep its old rate."""
    declared = measured(sites(("a", "b", 10)), 400_000)
    plan = make_policy("mst").plan(declared)
    known = Knowledge(declared)
    observe(known, plan, declared, 0, 4)
    observe(known, plan, with_rate(declared, "a->b", 0.25), 4, 4, every_s=2.0)
    before, since = known.past_network(1.0, 4.0, 16.0), known.past_network(8.0, 16.0, 16.0)
    assert before.view.links["a->b"].rate_bps == pytest.approx(10e6, rel=0.1)
    assert since.view.links["a->b"].rate_bps == pytest.approx(2.5e6, rel=0.1)
    for seen in (before, since):
        moved = seen.rate_movement(plan, predict(plan, seen.view).seconds)
        assert moved is not None and moved < 0.15
    step = known.past_network(1.0, 16.0, 16.0)
    assert step.rate_movement(plan, predict(plan, step.view).seconds) == pytest.approx(log(4), rel=0.1)


def test_links_that_delay_no_round_need_not_be_known() -> None:
    declared = measured(sites(("a", "b", 10)), 400_000)
    plan = make_policy("mst").plan(declared)
    known = Knowledge(declared)
    drain_s = predict(plan, declared).drain_s
    assert known.past_network(1.0, 2.0, 3.0).rate_movement(plan, drain_s) is None
    assert known.past_network(1.0, 2.0, 3.0).rate_movement(plan, 3 * drain_s) == 0.0
    assert (
        Knowledge(replace(declared, knowledge="oracle")).past_network(1.0, 2.0, 3.0).rate_movement(plan, drain_s) == 0.0
    )


def test_the_least_of_the_newest_round_trips_counts_and_the_declared_one_before_any() -> None:
    trips = RoundTrips()
    assert trips.least_s(EDGE, DECLARED_S) == DECLARED_S
    for number, rtt_s in enumerate([0.05, *[0.08] * (RTT_SAMPLES - 1)]):
        trips.add(EDGE, rtt_s, DECLARED_S, float(number))
    assert trips.least_s(EDGE, DECLARED_S) == 0.05
    trips.add(EDGE, 0.08, DECLARED_S, 20.0)
    assert trips.least_s(EDGE, DECLARED_S) == 0.08


def test_a_changed_path_is_no_shorter_than_declared_while_the_kernel_may_report_the_old_one() -> None:
    trips = RoundTrips()
    for edge in (EDGE, EDGE[::-1]):
        trips.add(edge, 0.05, DECLARED_S, 0.0)
    assert trips.since_s(EDGE) == -inf
    trips.redeclare(EDGE, 10.0)
    assert [trips.least_s(edge, 0.2) for edge in (EDGE, EDGE[::-1])] == [0.2, 0.2]
    assert trips.since_s(EDGE[::-1]) == 10.0
    trips.add(EDGE, 0.05, 0.2, 10.0 + MIN_RTT_WINDOW_S)
    assert trips.least_s(EDGE, 0.2) == 0.2
    trips.add(EDGE, 0.05, 0.2, 10.1 + MIN_RTT_WINDOW_S)
    assert trips.least_s(EDGE, 0.2) == 0.05


@pytest.mark.parametrize("in_a_round", [False, True])
def test_the_trains_of_an_edge_whose_way_back_is_down_are_forgotten(in_a_round: bool) -> None:
    view = replace(measured(sites(("a", "b", 40), ("a", "c", 40), ("c", "b", 40))), knowledge="oracle")
    plan, chance = Plan(0, view.names, (star(view.names, "b-w0"),)), random.Random(1)
    known = Knowledge(view)
    observe(known, plan, view, 0, 3)
    if in_a_round:
        known.add_trains(transfers(view, plan, chance, 3.0)[1])
    down = {**view.links, "a->b": replace(view.links["a->b"], up=False)}
    assert known.redeclare(down, view.routes, 4.0) == "routes"
    known.observe(*transfers(view, plan, chance, 4.5), 5.5)
    assert ("b-w0", "a-w0") not in known.view(5.5).edges
