from __future__ import annotations

from dataclasses import replace

import pytest

from testbed.planning import make_policy, simulate
from testbed.planning.trial import affordable, tried_s
from tests.planning.networks import sites, view_of

pytestmark = pytest.mark.pure

#: What coarser chunks change that the prediction does not.
COARSE = 0.02

FOUR = view_of(sites(("a", "b", 50), ("b", "c", 20), ("c", "d", 80), ("a", "d", 30), delay=0.03), {})


@pytest.mark.parametrize("policy", ["mst", "netstorm", "packing", "ring"])
@pytest.mark.parametrize("rounds", [1, 3])
def test_a_trial_with_coarse_chunks_says_what_the_whole_simulation_does(policy: str, rounds: int) -> None:
    large = replace(FOUR, model_bytes=40_000_000)
    plan = make_policy(policy).plan(large)
    assert plan.chunk_bytes < large.model_bytes / 128
    assert tried_s(plan, large, rounds) == pytest.approx(simulate(plan, large, rounds=rounds).seconds, rel=COARSE)


def test_a_trial_of_a_small_model_is_the_simulation() -> None:
    small = replace(FOUR, model_bytes=100_000)
    plan = make_policy("netstorm").plan(small)
    assert tried_s(plan, small) == pytest.approx(simulate(plan, small).seconds)


def test_a_single_member_takes_no_time() -> None:
    alone = FOUR.among({"a-w0"})
    assert tried_s(make_policy("star").plan(alone), alone) == 0


def test_sixteen_members_may_be_tried_and_forty_not() -> None:
    line = view_of(sites(*((f"s{i}", f"s{i + 1}", 50.0) for i in range(39))), {})
    assert affordable(line.among(set(line.names[:16])))
    assert not affordable(line)
