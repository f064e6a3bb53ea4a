"""Neighbours without a member that is lost."""

from __future__ import annotations

import pytest

from testbed.planning.graphs import metropolis, ring
from testbed.sync.gossip.neighbours import Neighbours

pytestmark = pytest.mark.pure


def test_without_a_lost_member_all_parameters_count_alike() -> None:
    """Of a ring of four, c is lost: b and d keep one neighbour, and a both. Rows and columns still sum to 1."""
    graph = ring("abcd")
    weights = metropolis(graph)
    rows = {
        member: Neighbours(member, graph.sources(member), graph.targets(member), weights[member]).without("c").weights
        for member in "abd"
    }
    assert rows["b"] == pytest.approx({"b": 2 / 3, "a": 1 / 3})
    for member in "abd":
        assert sum(rows[member].values()) == pytest.approx(1)
        assert sum(row.get(member, 0.0) for row in rows.values()) == pytest.approx(1)
