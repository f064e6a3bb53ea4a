"""The claims on all-reduces."""

from __future__ import annotations

import pytest

from benchmarks.allreduce import MIB, Figures, cases

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("ours_s", "memory_mib", "held"), [(1.0, 100, True), (1.08, 100, False), (1.2, 100, False), (1.0, 200, False)]
)
def test_a_case_is_held_to_its_seconds_and_its_memory(ours_s: float, memory_mib: int, held: bool) -> None:
    case = next(case for case in cases() if case.name == "a")
    assert Figures(case, {"ours": [ours_s], "gloo": [1.0]}, 1.0, memory_mib * MIB, 4, 1 << 16).held == held
