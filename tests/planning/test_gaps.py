"""The table of bounds, and the monitor that holds a run to it."""

from __future__ import annotations

from math import inf

import pytest

from testbed.planning.gaps import GapMonitor, Violation, gap_bounds
from testbed.planning.graphs import Graph, ring

pytestmark = pytest.mark.pure

#: a -> b -> c -> d -> a: what one sends comes back after three more hops.
CIRCLE = Graph(tuple("abcd"), frozenset({("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")}))


def test_the_table() -> None:
    # Iter(a) - Iter(b): b's updates take 3 hops to a, a's tokens from b come over 1.
    pair = ("a", "b")
    assert gap_bounds(CIRCLE)[pair] == 3
    assert gap_bounds(CIRCLE, notify_ack=True)[pair] == 2
    assert gap_bounds(CIRCLE, max_ig=2)[pair] == 2
    assert gap_bounds(CIRCLE, max_ig=9)[pair] == 3
    assert gap_bounds(CIRCLE, backup=1)[pair] == inf
    assert gap_bounds(CIRCLE, backup=1, max_ig=9)[pair] == 9
    assert gap_bounds(CIRCLE, staleness=2)[pair] == 9
    assert gap_bounds(CIRCLE, staleness=2, max_ig=4)[pair] == 4


def test_the_monitor_names_the_member_that_broke_a_bound() -> None:
    graph = ring(tuple("abcd"))
    monitor = GapMonitor(graph.members, gap_bounds(graph))
    assert monitor.advance("a", 1) == []
    assert monitor.advance("b", 1) == []
    # d, one hop away, is still in 0; c, two hops away, may be.
    assert monitor.advance("a", 2) == [Violation("a", "d", 2, 1)]
    assert monitor.widest["a", "c"] == 2 and monitor.widest["c", "a"] == 0
    assert monitor.advance("d", 1) == []
