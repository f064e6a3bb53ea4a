from __future__ import annotations

import pytest

from testbed.plan import Plan, Tree
from testbed.planning.chunks import HOPS, coarse

pytestmark = pytest.mark.pure

PLAN = Plan(0, ("a", "b", "c"), (Tree("a", {"b": "a", "c": "a"}, {"b": "a", "c": "a"}),))


def test_a_small_model_keeps_its_chunks() -> None:
    assert coarse(PLAN, 8 * PLAN.chunk_bytes) == PLAN


def test_a_large_model_is_cut_into_as_many_chunks_as_can_be_simulated() -> None:
    model_bytes = 10**9
    chunk_bytes = coarse(PLAN, model_bytes).chunk_bytes
    assert chunk_bytes % 8 == 0
    assert 4 * model_bytes / chunk_bytes == pytest.approx(HOPS, rel=0.01), "four hops"
