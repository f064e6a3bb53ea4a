"""The figures of the Hop benchmark: the slowest member's own steps, and claims over all seeds that were measured."""

from __future__ import annotations

import pytest

from benchmarks.hop import CLAIMS, EXPERIMENT, MEMBERS, STEP_S, alone_s, claims_table, missed, ratios
from testbed.simulation.members import DeclaredCompute
from testbed.workload import Workload

pytestmark = pytest.mark.pure


def test_the_slowest_member_alone_takes_its_own_steps() -> None:
    def seconds(shard: int) -> float:
        slow = {"slow_factor": 6.0, "slow_probability": 1 / 16, "step_seconds": STEP_S}
        compute = DeclaredCompute(Workload("svm", 16, "sgd", 0.1, 3, shard, MEMBERS, **slow))  # type: ignore[arg-type]
        return sum(compute.next_step_s(0.0) for _ in range(EXPERIMENT["train"]["rounds"]))

    assert alone_s("random", 3) == pytest.approx(max(map(seconds, range(MEMBERS))))


def test_a_claim_is_held_against_all_seeds_that_were_measured() -> None:
    claim = CLAIMS[0]
    than, better = ({seed: claim.cells(seed)[place].key for seed in (1, 7)} for place in (0, 1))
    found = {key: {"seconds": 30.0} for key in than.values()} | {key: {"seconds": 20.0} for key in better.values()}
    assert ratios(claim, found, "seconds") == [1.5, 1.5]


def test_a_claim_below_its_bar_and_a_loss_beyond_all_reduces_are_missed() -> None:
    claim = next(claim for claim in CLAIMS if claim.bar == 1.2)
    than, better = (cell.key for cell in claim.cells(1))
    for seconds, names in ((21.0, []), (30.0, [claim.name])):
        its = {"seconds": 30.0, "seconds_to_target": None}
        _, figures = claims_table({than: its, better: {**its, "seconds": seconds}})
        assert missed(figures, {"standard": {"within": True}}) == names
    assert missed({}, {"standard": {"within": False}}) == ["standard"]
