"""The claims on emulated policies."""

from __future__ import annotations

import pytest

from benchmarks.policies import Measured, claims, simulated
from benchmarks.support.netstorm import TOPOLOGIES
from testbed.spec.topology import Topology

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(("seconds", "held"), [(1.1, [True, True]), (1.18, [True, False]), (1.5, [False, False])])
def test_packing_is_held_to_the_bound_and_to_the_simulator(seconds: float, held: list[bool]) -> None:
    one = Measured("packing", 1, 0.1, 500_000, (seconds,), 1.0, 1.0, 1.0, 9, 1 << 16, 0.0, "2026-11-30 00:00:00")
    assert [holds for *_, holds in claims({"packing": {1: one}})] == held


def test_simulated_figures_are_not_held_to_the_simulator() -> None:
    one = Measured("packing", 1, 0.1, 500_000, (1.1,), 1.0, 1.1, 1.0, 9, 1 << 16, 0.0, "2026-11-30 00:00:00")
    assert len(claims({"packing": {1: one}}, simulated=True)) == 1


def test_simulated_packing_is_near_the_bound_and_quicker_than_a_star() -> None:
    packing, star = simulated(1, Topology.load(TOPOLOGIES / "netstorm9.yaml"), ("packing", "star alexnet, best"))
    assert packing.bound_s < packing.mean_s < 1.2 * packing.bound_s < star.mean_s
