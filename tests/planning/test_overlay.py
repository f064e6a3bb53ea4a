"""Against all trees there are. (NetworkX finds none in some graphs that have one.)"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from testbed.planning.overlay import Arborescences

pytestmark = pytest.mark.pure

COSTS = st.integers(1, 5).flatmap(
    lambda n: arrays(np.float64, (n, n), elements=st.sampled_from([0.0, 0.0, 1.0, 2.0, 3.5, 7.0, float("inf")]))
)


def reference(costs: np.ndarray, root: int) -> float:
    """The least cost of a tree out of `root`, of all that there are; infinite where there is none."""
    others = [node for node in range(len(costs)) if node != root]
    totals = (
        sum(costs[parents[v], v] for v in others)
        for chosen in product(range(len(costs)), repeat=len(others))
        if leads_back(parents := {root: root, **dict(zip(others, chosen, strict=True))})
    )
    return float(min(totals))


def leads_back(parents: Mapping[int, int]) -> bool:
    """Return whether every node's parents lead to the root, the only node that is its own parent."""
    ends = set()
    for node in parents:
        for _ in parents:
            node = parents[node]
        ends.add(node)
    return len(ends) == 1 and sum(parent == node for node, parent in parents.items()) == 1


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
