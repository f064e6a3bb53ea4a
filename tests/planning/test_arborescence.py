"""Against NetworkX, which finds the same costs by another implementation."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from testbed.planning.arborescence import Arborescences

pytestmark = pytest.mark.unit

COSTS = st.integers(1, 7).flatmap(
    lambda n: arrays(np.float64, (n, n), elements=st.sampled_from([0.0, 0.0, 1.0, 2.0, 3.5, 7.0, float("inf")]))
)


def reference(costs: np.ndarray, root: int) -> float:
    """The least cost of a tree out of `root`, infinite where there is none."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(costs)))
    for u, v in np.ndindex(costs.shape):
        if u != v and v != root and np.isfinite(costs[u, v]):
            graph.add_edge(u, v, weight=costs[u, v])
    try:
        return nx.minimum_spanning_arborescence(graph).size(weight="weight")
    except nx.NetworkXException:
        return float("inf")


@given(COSTS)
def test_every_root_s_tree_is_as_cheap_as_the_reference(costs: np.ndarray) -> None:
    found = Arborescences(costs)
    for root in range(len(costs)):
        expected = reference(costs, root)
        assert found.totals[root] == pytest.approx(expected)
        if expected == float("inf"):
            continue
        parents = found.parents(root)
        assert parents[root] == root
        for node in range(len(costs)):
            for _ in range(len(costs)):
                node = parents[node]
            assert node == root
        assert sum(costs[parents[v], v] for v in range(len(costs)) if v != root) == pytest.approx(expected)
