from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.controller.knowledge.knowledge import FORGOTTEN_S, Knowledge
from testbed.controller.knowledge.network_monitor import (
    DOUBT,
    FASTER,
    LEAST_BYTES,
    LOOK,
    MOST_BYTES,
    TRAIN_S,
    USED,
    USUAL,
    NetworkMonitor,
    ProbeKind,
    ProbeScheduler,
    probe_of,
)
from testbed.controller.model.identity import Identities
from testbed.controller.model.membership import AllReduceMembership
from testbed.controller.model.round_log import RoundLog
from testbed.planning import Pair, View
from testbed.protocol import PROBE_TRAINS, Arrived, Probe
from tests.planning.networks import sites, view_of

pytestmark = pytest.mark.pure

A, B, C, D = (f"{site}-w0" for site in "abcd")


def network(mbps: float = 20) -> View:
    """Return a view of a chain of four sites, b - a - c - d, whose links have `mbps`."""
    return view_of(sites(("a", "b", mbps), ("a", "c", mbps), ("c", "d", mbps), delay=0.05), {})


PAIRS: dict[str, list[Pair]] = {
    "a->b": [(A, B)],
    "a->c": [(A, C), (A, D)],
    "c->d": [(A, D), (C, D)],
}

UNKNOWN = {name: (USUAL, pairs) for name, pairs in PAIRS.items()}
ONE = {"a->b": UNKNOWN["a->b"]}


def to_b(found: list[tuple[str, Probe]]) -> list[Probe]:
    """Return the probes from A to B."""
    return [probe for source, probe in found if (source, probe.peer) == (A, B)]


def test_each_link_is_probed_by_the_shortest_edge_over_it_and_a_member_probes_one_at_a_time() -> None:
    scheduler, declared = ProbeScheduler(), network()
    assert [(source, probe.peer) for source, probe in scheduler.probes(UNKNOWN, declared, 0.0)] == [(A, B), (C, D)]
    assert scheduler.probes(UNKNOWN, declared, USUAL.spacing_s / 2) == []
    assert [source for source, _ in scheduler.probes(UNKNOWN, declared, USUAL.spacing_s)] == [A]


def test_all_edges_take_turns_and_rest_between_probes() -> None:
    scheduler, declared = ProbeScheduler(), network()
    asked: dict[tuple[str, str], list[float]] = {}
    for i in range(100):
        for source, probe in scheduler.probes(UNKNOWN, declared, float(i)):
            asked.setdefault((source, probe.peer), []).append(float(i))
    assert asked.keys() == {(A, B), (A, C), (C, D)}
    assert all(times[0] < 30 for times in asked.values())
    gaps = [after - before for times in asked.values() for before, after in pairwise(times)]
    assert gaps and min(gaps) >= USUAL.again_s


def test_links_of_the_plan_in_force_are_probed_more_often() -> None:
    scheduler, declared = ProbeScheduler(), network()
    asked: dict[str, list[float]] = {}
    for i in range(400):
        for _, probe in scheduler.probes({**UNKNOWN, "a->b": (USED, PAIRS["a->b"])}, declared, i / 4):
            asked.setdefault(probe.peer, []).append(i / 4)
    least_s = {peer: min(after - before for before, after in pairwise(times)) for peer, times in asked.items()}
    assert USED.again_s <= least_s[B] < USUAL.again_s <= min(least_s[C], least_s[D])
    assert 8 * len(asked[B]) * probe_of(B, 20e6).bytes <= USED.share * 20e6 * 100 + 8 * probe_of(B, 20e6).bytes


def test_a_member_looks_at_all_its_links_at_once_by_a_train_each() -> None:
    scheduler, declared = ProbeScheduler(), network()
    looks = {name: (LOOK, pairs) for name, pairs in PAIRS.items()}
    found = scheduler.probes(looks, declared, 0.0)
    assert [(source, probe.peer, probe.trains) for source, probe in found] == [(A, B, 1), (A, C, 1), (C, D, 1)]
    assert scheduler.probes(looks, declared, LOOK.again_s / 2) == []
    seconds = 20
    sizes = [8 * probe.bytes for i in range(4, 4 * seconds) for probe in to_b(scheduler.probes(looks, declared, i / 4))]
    assert len(sizes) > seconds and sum(sizes) <= LOOK.share * 20e6 * seconds


def test_an_unknown_link_of_the_plan_is_probed_although_its_member_looks_at_other_links_all_the_time() -> None:
    scheduler, declared, seconds = ProbeScheduler(), network(), 20
    wanted = {"a->b": (USED, PAIRS["a->b"]), "a->c": (LOOK, PAIRS["a->c"])}
    found = [scheduler.probes(wanted, declared, i / 4) for i in range(4 * seconds)]
    assert sum(len(to_b(its)) for its in found) >= seconds / 2
    assert sum(probe.peer == C for its in found for _, probe in its) >= seconds


def test_a_doubted_link_is_probed_before_its_budget_allows_but_not_for_long() -> None:
    """On a busy host all trains may come late, and each one may contradict the estimate."""
    scheduler, declared, seconds = ProbeScheduler(), network(), 60
    doubted = {**UNKNOWN, "a->b": (DOUBT, PAIRS["a->b"])}
    scheduler.probes({"a->b": (LOOK, PAIRS["a->b"])}, declared, 0.0)
    found = [to_b(scheduler.probes(doubted, declared, i / 4)) for i in range(1, 4 * seconds)]
    assert found[0] == [probe_of(B, 20e6, DOUBT.trains)]
    most = DOUBT.early_s * USED.share * 20e6 + 8 * probe_of(B, 20e6, DOUBT.trains).bytes
    assert sum(8 * probe.bytes for its in found for probe in its) <= USED.share * 20e6 * seconds + most


def test_a_doubted_path_of_unknown_links_has_a_budget_too() -> None:
    """On real machines no routes are declared."""
    view, seconds = replace(network(), routes={}), 60
    scheduler = ProbeScheduler()
    doubted = {f"{A}=>{B}": (DOUBT, [(A, B)])}
    found = [to_b(scheduler.probes(doubted, view, i / 4)) for i in range(4 * seconds)]
    most = DOUBT.early_s * USED.share * 20e6 + 8 * probe_of(B, 20e6, DOUBT.trains).bytes
    assert 0 < sum(8 * probe.bytes for its in found for probe in its) <= USED.share * 20e6 * seconds + most


@pytest.mark.parametrize("kind", [USUAL, USED, LOOK])
def test_probes_take_a_small_part_of_a_link_that_their_paths_share(kind: ProbeKind) -> None:
    mbps, seconds = 20, 100
    view = view_of(sites(("a", "hub", mbps), ("hub", "b", mbps), ("hub", "c", mbps), ("hub", "d", mbps)), {})
    unknown = {f"hub->{site}": (kind, [(A, f"{site}-w0")]) for site in "bcd"}
    scheduler = ProbeScheduler()
    found = [scheduler.probes(unknown, view, i / 4) for i in range(4 * seconds)]
    sizes = [8 * probe.bytes for probes in found for _, probe in probes]
    assert 0 < sum(sizes) <= USED.share * mbps * 1e6 * seconds + sizes[0]


@pytest.mark.parametrize("mbps", [2, 5, 20, 40, 400])
def test_probes_take_a_small_part_of_what_their_path_could_carry(mbps: float) -> None:
    scheduler, declared = ProbeScheduler(), network(mbps)
    seconds = 120
    found = [probe for i in range(seconds) for probe in to_b(scheduler.probes(UNKNOWN, declared, float(i)))]
    assert 0 < 8 * sum(probe.bytes for probe in found) <= USUAL.share * mbps * 1e6 * seconds + 8 * found[0].bytes


@given(st.floats(1e4, 1e11))
def test_a_train_is_faster_than_its_path_and_neither_short_nor_long(most_bps: float) -> None:
    probe = probe_of("b", most_bps)
    assert 8 * probe.bytes / probe.seconds == pytest.approx(FASTER * most_bps, rel=1e-3)
    train = probe.bytes / PROBE_TRAINS
    assert train + 1 >= LEAST_BYTES and train <= MOST_BYTES
    assert 8 * train / most_bps <= TRAIN_S or train <= LEAST_BYTES


def measured(mbps: float) -> View:
    """Return the same network with all rates measured."""
    view = network(mbps)
    return replace(view, edges={pair: replace(edge, source="measured") for pair, edge in view.edges.items()})


def test_a_path_that_fell_is_probed_at_its_old_rate_until_that_is_forgotten() -> None:
    scheduler = ProbeScheduler()
    before = to_b(scheduler.probes(UNKNOWN, measured(20), 0.0))
    assert to_b(scheduler.probes(ONE, measured(0.5), FORGOTTEN_S)) == before
    scheduler.probes({}, measured(0.5), FORGOTTEN_S + 1)
    assert to_b(scheduler.probes(ONE, measured(0.5), 10 * FORGOTTEN_S)) == [probe_of(B, 0.5e6)]


def test_a_declared_rate_counts_until_it_is_measured_and_another_network_starts_afresh() -> None:
    scheduler = ProbeScheduler()
    assert to_b(scheduler.probes(UNKNOWN, network(100), 0.0)) == [probe_of(B, 100e6)]
    assert to_b(scheduler.probes(ONE, measured(5), 30.0)) == [probe_of(B, 5e6)]
    scheduler.redeclare()
    assert to_b(scheduler.probes(ONE, network(1), 59.0)) == [probe_of(B, 1e6)]


def test_known_links_are_not_probed() -> None:
    assert ProbeScheduler().probes({}, network(), 0.0) == []


def test_links_are_measured_during_rounds_again_after_the_clock_was_set_back() -> None:
    membership = AllReduceMembership(Identities((A, B), "secret"), elastic=None)
    rounds = RoundLog(lambda _: membership.present)
    monitor = NetworkMonitor(Knowledge(network()), rounds, membership, lambda *_: None)
    assert [monitor.arrived(Arrived(name), 10_000.0) for name in (A, B)] == [False, True]
    assert [monitor.arrived(Arrived(name), 10_000.3) for name in (A, B)] == [False, True]
    assert [monitor.arrived(Arrived(name), 6_400.6) for name in (A, B)] == [False, True]
    assert [monitor.arrived(Arrived(name), 6_400.9) for name in (A, B)] == [False, True]
