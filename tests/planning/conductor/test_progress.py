"""The worth of steps, learned from losses."""

from __future__ import annotations

from itertools import pairwise
from math import exp, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.planning.conductor import Candidate, TrainedHistory, learn
from testbed.planning.conductor.history import KEPT
from tests.planning.conductor.runs import FLAT, SCHEMES, Truth

pytestmark = pytest.mark.pure

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
    worth = learn((), SCHEMES)
    assert worth.log_worth(FLAT) == 0 and worth.worth == 0
    more = [worth.log_worth(Candidate("local_sgd", steps)) for steps in (2, 8, 32, 128)]
    assert more == sorted(more, reverse=True)
    assert worth.spread(Candidate("diloco", 32)) > worth.spread(Candidate("local_sgd", 2)) > 0


@pytest.mark.parametrize("horizon", [5.0, 40.0, 400.0])
def test_the_truth_lies_within_what_is_not_known(horizon: float) -> None:
    """In three of four seeds within two standard deviations, whatever members' data is like."""
    truth = Truth(0.1, 1.0, horizon)
    within = 0
    for seed in range(8):
        learned = learn(seen(truth, [(FLAT, 40), (LOCAL, 12), (FLAT, 30)], seed).stretches, SCHEMES)
        off = learned.log_worth(LOCAL) - log(truth.worth(LOCAL))
        within += abs(off) < 2 * learned.spread(LOCAL)
    assert within >= 6


def test_losses_make_it_surer() -> None:
    truth = Truth(0.1, 1.0, 10.0)
    before, after = learn((), SCHEMES), learn(seen(truth, [(FLAT, 30), (LOCAL, 20)]).stretches, SCHEMES)
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
        horizons.append(learn(history.stretches, SCHEMES).to_json()["horizon"])
    assert horizons[1] < horizons[0] / 2


def test_optimizers_that_normalize_make_less_of_each_members_own_noise() -> None:
    """However few the steps of a round; sums of plain gradients are the sum's."""
    adam, sgd = learn((), SCHEMES, "adam"), learn((), SCHEMES, "sgd")
    few = Candidate("local_sgd", 2)
    assert adam.log_worth(few) < sgd.log_worth(few) - 0.3
    assert adam.log_worth(FLAT) == sgd.log_worth(FLAT) == 0


def test_codecs_of_fewer_bits_are_worth_less_and_less_surely() -> None:
    worth = learn((), SCHEMES)
    of = [Candidate("gradients", 1, codec) for codec in ("fp32", "fp16", "int8", "bins4", "bins2")]
    logs, spreads = [worth.log_worth(its) for its in of], [worth.spread(its) for its in of]
    assert logs == sorted(logs, reverse=True) and spreads == sorted(spreads)
    assert worth.log_worth(Candidate("sparseloco", 8, "sparse")) == worth.log_worth(Candidate("sparseloco", 8, "bins2"))


def test_what_steps_were_worth_is_as_unsure_as_what_they_will_be() -> None:
    coded = Candidate("gradients", 1, "bins4")
    learned = learn(seen(Truth(0.1, 1.0, 60.0), [(FLAT, 40), (coded, 60)]).stretches, SCHEMES)
    worth, unsure = learned.spent(FLAT, 100)
    assert worth == pytest.approx(learned.worth + 100)
    assert unsure == pytest.approx(60 * exp(learned.log_worth(coded)) * learned.spread(coded), rel=1e-6)
    assert learned.spent(coded, 100)[1] == pytest.approx(unsure * 160 / 60, rel=1e-6)
    assert learn(seen(Truth(0.1, 1.0, 60.0), [(FLAT, 40)]).stretches, SCHEMES).spent(FLAT, 10) == (50, 0)


def test_a_loss_that_falls_again_counts_as_it_falls() -> None:
    """On a plateau, and then by 0.002 a step: a power law through all of it would have it flatten."""
    history = TrainedHistory()
    for number in range(1, 401):
        history.add(FLAT, number, 8, 2.6 + 4 / number if number < 250 else 2.616 - 0.002 * (number - 250), None)
    learned = learn(history.stretches, SCHEMES)
    assert learned.above(470, 480) > 0.8 * 10 * 0.002 * 333 / 480


@given(st.floats(1, 1000), st.floats(1, 1000), st.floats(1, 1000))
@settings(max_examples=30)
def test_more_steps_lost_end_higher(one: float, other: float, third: float) -> None:
    least, middle, most = sorted((one, other, third))
    assert LEARNED.above(least, most) >= LEARNED.above(middle, most) >= LEARNED.above(most, most) == 0
    assert LEARNED.above(most, least) == 0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(list(SCHEMES.candidates())), st.integers(1, 90)), min_size=1, max_size=4))
def test_histories_lose_no_step_and_stay_short(plan: list[tuple[Candidate, int]]) -> None:
    history = seen(Truth(0.1, 1.0, 50.0), plan)
    stretches = history.stretches
    assert sum(its.ended - its.began for its in stretches) == history.steps == sum(c.steps * n for c, n in plan)
    assert all(one.ended == other.began for one, other in pairwise(stretches))
    assert all(len(its.losses) <= KEPT for its in stretches)
    assert sum(loss.weight for its in stretches for loss in its.losses) == 8 * sum(n for _, n in plan)
    learned = learn(stretches, SCHEMES)
    assert all(np.isfinite(learned.log_worth(its)) for its in SCHEMES.candidates())
    assert learned.loss(learned.worth) >= learned.loss(learned.worth + 100)
    assert 0 < exp(learned.log_worth(FLAT)) <= 1


LEARNED = learn(seen(Truth(0.1, 1.0, 50.0), [(FLAT, 60)]).stretches, SCHEMES)
