"""What steps are worth, learned from losses."""

from __future__ import annotations

from itertools import pairwise
from math import exp, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.planning.conductor import FIRST, Candidate, TrainedHistory, candidates, learn
from testbed.planning.conductor.history import KEPT
from tests.planning.conductor.runs import Truth

pytestmark = pytest.mark.unit

LOCAL = Candidate("local_sgd", 8)


def seen(truth: Truth, plan: list[tuple[Candidate, int]], seed: int = 0) -> TrainedHistory:
    """Rounds of each candidate in turn."""
    draw = np.random.default_rng(seed)
    history, worth = TrainedHistory(), 0.0
    for candidate, rounds in plan:
        for _ in range(rounds):
            agreed = truth.loss(worth) + draw.normal() * truth.noise
            own = truth.loss(worth + candidate.steps) + draw.normal() * truth.noise
            worth += candidate.steps * truth.worth(candidate)
            steps = history.steps + candidate.steps
            history.add(candidate, steps, 8, agreed, own if candidate.steps > 1 else None)
    return history


def test_of_nothing_what_is_believed_of_any_task() -> None:
    worth = learn(())
    assert worth.log_worth(FIRST) == 0 and worth.worth == 0
    more = [worth.log_worth(Candidate("local_sgd", steps)) for steps in (2, 8, 32, 128)]
    assert more == sorted(more, reverse=True)
    assert worth.spread(Candidate("diloco", 32)) > worth.spread(Candidate("local_sgd", 2)) > 0


@pytest.mark.parametrize("horizon", [5.0, 40.0, 400.0])
def test_the_truth_lies_within_what_is_not_known(horizon: float) -> None:
    """In three of four seeds within two standard deviations, whatever members' data is like."""
    truth = Truth(0.1, 1.0, horizon)
    within = 0
    for seed in range(8):
        learned = learn(seen(truth, [(FIRST, 40), (LOCAL, 12), (FIRST, 30)], seed).stretches)
        off = learned.log_worth(LOCAL) - log(truth.worth(LOCAL))
        within += abs(off) < 2 * learned.spread(LOCAL)
    assert within >= 6


def test_losses_make_it_surer() -> None:
    truth = Truth(0.1, 1.0, 10.0)
    before, after = learn(()), learn(seen(truth, [(FIRST, 30), (LOCAL, 20)]).stretches)
    assert after.spread(LOCAL) < before.spread(LOCAL)
    assert abs(after.log_worth(LOCAL) - log(truth.worth(LOCAL))) < abs(
        before.log_worth(LOCAL) - log(truth.worth(LOCAL))
    )


def test_what_merging_undoes_shortens_the_horizon() -> None:
    """Members learn as much alone in either case; in one the merge keeps all of it, in the other a third."""
    horizons = []
    for kept in (1.0, 0.33):
        history, loss = TrainedHistory(), 3.0
        for number in range(1, 9):
            history.add(LOCAL, 8 * number, 8, loss, loss - 0.2)
            loss -= 0.2 * kept
        horizons.append(learn(history.stretches).horizon)
    assert horizons[1] < horizons[0] / 2


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(list(candidates())), st.integers(1, 90)), min_size=1, max_size=4))
def test_histories_lose_no_step_and_stay_short(plan: list[tuple[Candidate, int]]) -> None:
    history = seen(Truth(0.1, 1.0, 50.0), plan)
    stretches = history.stretches
    assert sum(its.ended - its.began for its in stretches) == history.steps == sum(c.steps * n for c, n in plan)
    assert all(one.ended == other.began for one, other in pairwise(stretches))
    assert all(len(its.losses) <= KEPT for its in stretches)
    assert sum(loss.weight for its in stretches for loss in its.losses) == 8 * sum(n for _, n in plan)
    learned = learn(stretches)
    assert all(np.isfinite(learned.log_worth(its)) for its in candidates())
    assert learned.loss(learned.worth) >= learned.loss(learned.worth + 100)
    assert 0 < exp(learned.log_worth(FIRST)) <= 1
