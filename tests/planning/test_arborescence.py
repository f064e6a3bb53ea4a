"""Against NetworkX, which finds the same costs by another implementation."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from testbed.planning.arborescence import arborescence

pytestmark = pytest.mark.unit

COSTS = st.integers(1, 7).flatmap(
    lambda n: arrays(np.float64, (n, n), elements=st.sampled_from([0.0, 0.0, 1.0, 2.0, 3.5, 7.0, float("inf")]))
)


def reference(costs: np.ndarray) -> float | None:
    """The least cost of a tree out of node 0."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(costs)))
    for u, v in np.ndindex(costs.shape):
        if u != v and v != 0 and np.isfinite(costs[u, v]):
            graph.add_edge(u, v, weight=costs[u, v])
    try:
        return nx.minimum_spanning_arborescence(graph).size(weight="weight")
    except nx.NetworkXException:
        return None


@given(COSTS)
def test_it_is_a_tree_as_cheap_as_the_reference(costs: np.ndarray) -> None:
    parents = arborescence(costs, 0)
    expected = reference(costs)
    if expected is None:
        assert parents is None
        return
    assert parents is not None and parents[0] == 0
    for node in range(len(costs)):
        for _ in range(len(costs)):
            node = parents[node]
        assert node == 0
    assert sum(costs[parents[v], v] for v in range(1, len(costs))) == pytest.approx(expected)
