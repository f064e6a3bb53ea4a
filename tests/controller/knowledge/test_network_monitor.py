from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.controller.knowledge.knowledge import FORGOTTEN_S
from testbed.controller.knowledge.network_monitor import (
    FASTER,
    LEAST_BYTES,
    MOST_BYTES,
    TRAIN_S,
    USED,
    USUAL,
    ProbeScheduler,
    probe_of,
)
from testbed.planning import Pair, View
from testbed.protocol import PROBE_TRAINS
from tests.planning.networks import sites, view_of

pytestmark = pytest.mark.pure

A, B, C, D = (f"{site}-w0" for site in "abcd")


def network(mbps: float = 20) -> View:
    """Return a view of a chain of four sites, b - a - c - d, whose links have `mbps`."""
    return view_of(sites(("a", "b", mbps), ("a", "c", mbps), ("c", "d", mbps), delay=0.05), {})


UNKNOWN: dict[str, list[Pair]] = {
    "a->b": [(A, B)],
    "a->c": [(A, C), (A, D)],
    "c->d": [(A, D), (C, D)],
}


def test_each_link_is_probed_by_the_shortest_edge_over_it_and_a_member_probes_one_at_a_time() -> None:
    scheduler, declared = ProbeScheduler(), network()
    found = scheduler.probes(UNKNOWN, declared, 0.0)
    assert {source: probe.peer for source, probe in found.items()} == {A: B, C: D}
    assert scheduler.probes(UNKNOWN, declared, USUAL.spacing_s / 2) == {}
    assert scheduler.probes(UNKNOWN, declared, USUAL.spacing_s).keys() == {A}


def test_all_edges_take_turns_and_rest_between_probes() -> None:
    scheduler, declared = ProbeScheduler(), network()
    asked: dict[tuple[str, str], list[float]] = {}
    for i in range(100):
        for source, probe in scheduler.probes(UNKNOWN, declared, float(i)).items():
            asked.setdefault((source, probe.peer), []).append(float(i))
    assert asked.keys() == {(A, B), (A, C), (C, D)}
    assert all(times[0] < 30 for times in asked.values())
    gaps = [after - before for times in asked.values() for before, after in pairwise(times)]
    assert gaps and min(gaps) >= USUAL.again_s


def test_links_of_the_plan_in_force_are_probed_more_often() -> None:
    scheduler, declared = ProbeScheduler(), network()
    asked: dict[str, list[float]] = {}
    for i in range(400):
        for probe in scheduler.probes(UNKNOWN, declared, i / 4, used=("a->b",)).values():
            asked.setdefault(probe.peer, []).append(i / 4)
    least_s = {peer: min(after - before for before, after in pairwise(times)) for peer, times in asked.items()}
    assert USED.again_s <= least_s[B] < USUAL.again_s <= min(least_s[C], least_s[D])
    assert 8 * len(asked[B]) * probe_of(B, 20e6).bytes <= USED.share * 20e6 * 100 + 8 * probe_of(B, 20e6).bytes


def test_probes_of_the_plan_s_links_take_a_small_part_of_a_link_that_their_paths_share() -> None:
    mbps, seconds = 20, 100
    view = view_of(sites(("a", "hub", mbps), ("hub", "b", mbps), ("hub", "c", mbps), ("hub", "d", mbps)), {})
    unknown = {f"hub->{site}": [(A, f"{site}-w0")] for site in "bcd"}
    scheduler = ProbeScheduler()
    found = [scheduler.probes(unknown, view, i / 4, used=unknown) for i in range(4 * seconds)]
    sizes = [8 * probe.bytes for probes in found for probe in probes.values()]
    assert 0 < sum(sizes) <= USED.share * mbps * 1e6 * seconds + sizes[0]


@pytest.mark.parametrize("mbps", [2, 5, 20, 40, 400])
def test_probes_take_a_small_part_of_what_their_path_could_carry(mbps: float) -> None:
    scheduler, declared = ProbeScheduler(), network(mbps)
    seconds, found = 120, []
    for i in range(seconds):
        probe = scheduler.probes(UNKNOWN, declared, float(i)).get(A)
        found += [probe] if probe and probe.peer == B else []
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
    before = scheduler.probes(UNKNOWN, measured(20), 0.0)[A]
    assert scheduler.probes({"a->b": [(A, B)]}, measured(0.5), FORGOTTEN_S)[A] == before
    scheduler.probes({}, measured(0.5), FORGOTTEN_S + 1)
    assert scheduler.probes({"a->b": [(A, B)]}, measured(0.5), 10 * FORGOTTEN_S)[A] == probe_of(B, 0.5e6)


def test_a_declared_rate_counts_until_it_is_measured_and_another_network_starts_afresh() -> None:
    scheduler = ProbeScheduler()
    assert scheduler.probes(UNKNOWN, network(100), 0.0)[A] == probe_of(B, 100e6)
    assert scheduler.probes({"a->b": [(A, B)]}, measured(5), 30.0)[A] == probe_of(B, 5e6)
    scheduler.redeclare()
    assert scheduler.probes({"a->b": [(A, B)]}, network(1), 59.0)[A] == probe_of(B, 1e6)


def test_known_links_are_not_probed() -> None:
    assert ProbeScheduler().probes({}, network(), 0.0) == {}
