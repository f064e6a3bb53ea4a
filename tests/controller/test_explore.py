from __future__ import annotations

from itertools import pairwise

import pytest

from testbed.controller.explore import AGAIN_S, PROBE_BYTES, PROBE_S, SPACING_S, Explorer
from testbed.planning import Pair
from testbed.protocol import Probe

pytestmark = pytest.mark.unit

ROUTES: dict[Pair, tuple[str, ...]] = {
    ("a", "b"): ("a->b",),
    ("a", "c"): ("a->c",),
    ("a", "d"): ("a->c", "c->d"),
    ("c", "d"): ("c->d",),
}
UNKNOWN = {
    "a->b": [("a", "b")],
    "a->c": [("a", "c"), ("a", "d")],
    "c->d": [("a", "d"), ("c", "d")],
}


def test_each_link_is_probed_by_the_shortest_edge_over_it_and_a_member_probes_one_at_a_time() -> None:
    explorer = Explorer()
    assert explorer.probes(UNKNOWN, ROUTES.__getitem__, 0.0) == {
        "a": Probe("b", PROBE_BYTES, PROBE_S),
        "c": Probe("d", PROBE_BYTES, PROBE_S),
    }
    assert explorer.probes(UNKNOWN, ROUTES.__getitem__, SPACING_S / 2) == {}
    assert explorer.probes(UNKNOWN, ROUTES.__getitem__, SPACING_S).keys() == {"a"}


def test_all_edges_have_their_turn_and_none_twice_within_a_while() -> None:
    explorer = Explorer()
    asked: dict[tuple[str, str], list[float]] = {}
    for i in range(100):
        for source, probe in explorer.probes(UNKNOWN, ROUTES.__getitem__, float(i)).items():
            asked.setdefault((source, probe.peer), []).append(float(i))
    assert asked.keys() == {("a", "b"), ("a", "c"), ("c", "d")}
    assert all(times[0] < 30 for times in asked.values())
    gaps = [after - before for times in asked.values() for before, after in pairwise(times)]
    assert gaps and min(gaps) >= AGAIN_S


def test_what_is_known_is_not_probed() -> None:
    assert Explorer().probes({}, ROUTES.__getitem__, 0.0) == {}
