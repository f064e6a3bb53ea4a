from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.spec.graph.links import great_circle_km, midpoint, positions_of
from testbed.spec.graph.site_graph import GraphEdge, GraphNode, SiteGraph

pytestmark = pytest.mark.pure

POINTS = st.tuples(st.floats(-89, 89), st.floats(-180, 180))


def test_great_circles() -> None:
    assert great_circle_km((0, 0), (0, 180)) == pytest.approx(20_015, rel=1e-3)
    assert great_circle_km((90, 0), (0, 77)) == pytest.approx(10_007.5, rel=1e-3)
    assert great_circle_km((48, 2), (48, 2)) == 0


def test_a_midpoint_is_the_short_way_between() -> None:
    assert midpoint([(0, 179), (0, -179)]) == pytest.approx((0, 180))
    assert midpoint([(0, 0), (10, 0)]) == pytest.approx((5, 0))
    assert midpoint([(48, 2)]) == pytest.approx((48, 2))


@given(POINTS, POINTS)
def test_a_midpoint_is_as_far_from_either(a: tuple[float, float], b: tuple[float, float]) -> None:
    if great_circle_km(a, b) < 19_000:  # of opposite points every one is
        middle = midpoint([a, b])
        assert great_circle_km(a, middle) == pytest.approx(great_circle_km(middle, b), abs=0.1)
        assert great_circle_km(a, middle) == pytest.approx(great_circle_km(a, b) / 2, abs=0.1)


def test_positions_spread_from_those_that_are_known() -> None:
    nodes = {"a": GraphNode(position=(0.0, 0.0)), "b": GraphNode(), "c": GraphNode(), "d": GraphNode()}
    graph = SiteGraph({**nodes, "e": GraphNode()}, (GraphEdge("a", "b"), GraphEdge("b", "c"), GraphEdge("d", "e")))
    positions, estimated = positions_of(graph)
    assert estimated == ["b", "c"]
    assert positions == {"a": (0, 0), "b": (0, 0), "c": (0, 0)}
