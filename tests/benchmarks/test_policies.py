"""The claims on emulated policies."""

from __future__ import annotations

import pytest

from benchmarks.policies import Measured, claims

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(("seconds", "held"), [(1.1, [True, True]), (1.18, [True, False]), (1.5, [False, False])])
def test_packing_is_held_to_the_bound_and_to_the_simulator(seconds: float, held: list[bool]) -> None:
    one = Measured("packing", 1, 0.1, 500_000, (seconds,), 1.0, 1.0, 1.0, 9, 1 << 16, 0.0, "2026-11-30 00:00:00")
    assert [holds for *_, holds in claims({"packing": {1: one}})] == held
