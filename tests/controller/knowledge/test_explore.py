from __future__ import annotations

from itertools import pairwise

import pytest

from testbed.controller.knowledge.explore import (
    AGAIN_MOST_S,
    LEAST_BYTES,
    ROUND_TRIPS,
    SHARE,
    SPACING_S,
    Explorer,
    again_s,
)
from testbed.planning import Pair, View
from tests.planning.networks import sites, view_of

pytestmark = pytest.mark.unit

A, B, C, D = (f"{site}-w0" for site in "abcd")


def network(mbps: float = 20) -> View:
    """Three sites around a fourth: from it to each of them."""
    return view_of(sites(("a", "b", mbps), ("a", "c", mbps), ("c", "d", mbps), delay=0.05), {})


UNKNOWN: dict[str, list[Pair]] = {
    "a->b": [(A, B)],
    "a->c": [(A, C), (A, D)],
    "c->d": [(A, D), (C, D)],
}


def test_each_link_is_probed_by_the_shortest_edge_over_it_and_a_member_probes_one_at_a_time() -> None:
    explorer, declared = Explorer(), network()
    found = explorer.probes(UNKNOWN, declared, 0.0)
    assert {source: probe.peer for source, probe in found.items()} == {A: B, C: D}
    assert explorer.probes(UNKNOWN, declared, SPACING_S / 2) == {}
    assert explorer.probes(UNKNOWN, declared, SPACING_S).keys() == {A}


def test_all_edges_have_their_turn_and_none_twice_within_a_while() -> None:
    explorer, declared = Explorer(), network()
    asked: dict[tuple[str, str], list[float]] = {}
    for i in range(100):
        for source, probe in explorer.probes(UNKNOWN, declared, float(i)).items():
            asked.setdefault((source, probe.peer), []).append(float(i))
    assert asked.keys() == {(A, B), (A, C), (C, D)}
    assert all(times[0] < 30 for times in asked.values())
    gaps = [after - before for times in asked.values() for before, after in pairwise(times)]
    assert gaps and min(gaps) >= min(again_s(edge.rtt_s) for edge in declared.edges.values())


@pytest.mark.parametrize("mbps", [5, 20, 40, 400])
def test_probes_take_a_small_part_of_what_their_path_could_carry_and_last_some_round_trips(mbps: float) -> None:
    explorer, declared = Explorer(), network(mbps)
    seconds, total = 120, 0
    for i in range(seconds):
        for source, probe in explorer.probes(UNKNOWN, declared, float(i)).items():
            total += probe.bytes if (source, probe.peer) == (A, B) else 0
            assert ROUND_TRIPS * 0.1 <= probe.seconds <= ROUND_TRIPS * 0.1 + 1
    assert 0 < 8 * total <= SHARE * mbps * 1e6 * (seconds + AGAIN_MOST_S)


def test_a_path_that_fell_is_probed_with_enough_to_see_it_recover() -> None:
    assert Explorer().probes(UNKNOWN, network(0.5), 0.0)[A].bytes == LEAST_BYTES


def test_what_is_known_is_not_probed() -> None:
    assert Explorer().probes({}, network(), 0.0) == {}
