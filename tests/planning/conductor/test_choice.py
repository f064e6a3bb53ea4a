"""Which candidate is chosen: by simulated networks and tasks, and by what must be so of any situation."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.planning.conductor import Candidate, Situation, TrainedHistory, choose, learn
from testbed.planning.conductor.choice import SAMPLES, _mean_cost, _mean_saving
from tests.planning.conductor.runs import FLAT, PARTS, SCHEMES, Truth, conduct

pytestmark = pytest.mark.pure

STEPS = 240


@pytest.mark.parametrize("seed", range(2))
def test_where_rounds_cost_nothing_it_stays_with_gradients(seed: int) -> None:
    done = conduct(Truth(compute_s=0.1, exchange_s=0.005, horizon=1000.0), STEPS, seed)
    assert [its for _, its in done.chosen] == [FLAT]


@pytest.mark.parametrize("horizon", [300.0, 4.0])
def test_a_slow_network_has_members_send_less_within_the_limit_of_the_loss(horizon: float) -> None:
    """The limit holds where members' own progress agrees (horizon 300) and where it conflicts (4)."""
    truth = Truth(compute_s=0.1, exchange_s=2.0, horizon=horizon)
    done = conduct(truth, STEPS)
    assert done.seconds < STEPS * (truth.compute_s + truth.exchange_s) / 3
    assert truth.loss(done.worth) < truth.loss(STEPS) * (1 + SAMPLES)


def test_what_was_lost_already_is_no_reason_to_lose_more() -> None:
    """After a third of the steps at a loss that never comes back, all-reduce from now on is what it is held against."""
    truth = Truth(compute_s=0.1, exchange_s=2.0, horizon=30.0, outer={"local_sgd": 0.3})
    history, worth = TrainedHistory(), 0.0
    wasteful = Candidate("local_sgd", 8, "int8")
    for number in range(1, 21):
        history.add(wasteful, 8 * number, 8, truth.loss(worth), truth.loss(worth + 8))
        worth += 8 * truth.worth(wasteful)
    verdict = choose(
        situation(truth, wasteful, history, left=320),
        learn(history.stretches, SCHEMES, "adam"),
        SCHEMES.candidates("adam"),
    )
    assert verdict.change and verdict.candidate.scheme == FLAT.scheme and verdict.candidate.codec in ("fp16", "int8")
    assert "equal samples" in verdict.why


def test_samples_that_teach_nothing_more_are_no_loss() -> None:
    """The loss stands: no step is worth anything, so the fastest is taken."""
    truth = Truth(compute_s=0.1, exchange_s=2.0, horizon=30.0)
    history = TrainedHistory()
    for number in range(1, 65):
        history.add(FLAT, number, 8, 2.0, None)
    verdict = choose(
        situation(truth, FLAT, history, left=100), learn(history.stretches, SCHEMES, "adam"), SCHEMES.candidates("adam")
    )
    codec = Candidate("gradients", 1, "bins4")
    assert verdict.change and verdict.candidate.codec in ("bins4", "bins2")
    assert next(its.above for its in verdict.terms if its.candidate == str(codec)) <= SAMPLES / 2


def situation(truth: Truth, current: Candidate, history: TrainedHistory, left: int) -> Situation:
    return Situation(
        truth.compute_s, truth.exchanges(), 0.1,
        current=current, rounds=20, steps=history.steps, steps_left=left, elapsed_s=60.0, margin=0.1,
    )  # fmt: skip


seconds = st.floats(1e-3, 20.0)


@settings(max_examples=40, deadline=None)
@given(
    compute_s=seconds,
    exchange_s=seconds,
    margin=st.floats(0.02, 0.5),
    current=st.sampled_from(list(SCHEMES.candidates("muon"))),
)
def test_what_is_chosen_is_never_foreseen_worse_than_flat_all_reduce(
    compute_s: float, exchange_s: float, margin: float, current: Candidate
) -> None:
    history = TrainedHistory()
    for number in range(1, 9):
        history.add(current, number * current.steps, 4, 3.0 / number, 2.9 / number if current.steps > 1 else None)
    situation = Situation(
        compute_s, {codec: exchange_s * part for codec, part in PARTS.items()}, 0.1,
        current=current, rounds=8, steps=history.steps, steps_left=400, elapsed_s=60.0, margin=margin,
    )  # fmt: skip
    verdict = choose(situation, learn(history.stretches, SCHEMES), SCHEMES.candidates("muon"))
    terms = {its.candidate: its for its in verdict.terms}
    chosen, flat = terms[str(verdict.candidate)], terms[str(FLAT)]
    assert verdict.change == (verdict.candidate != current)
    if verdict.change:
        assert chosen.effective_s <= flat.effective_s * (1 + 1e-9)
        assert verdict.candidate == FLAT or chosen.above <= SAMPLES / 2
    if verdict.change and exchange_s < margin * (compute_s + exchange_s):
        assert verdict.candidate.scheme == FLAT.scheme
    assert [its.effective_s for its in verdict.terms] == sorted(its.effective_s for its in verdict.terms)
    assert verdict.why
    assert sum("chosen" in its.verdict for its in verdict.terms) == 1
    for its in verdict.terms:
        if its.effective_s != pytest.approx(flat.effective_s):
            assert ("no faster" in its.verdict) == (its.effective_s > flat.effective_s)


@given(ahead=st.floats(-1.0, 1.0), off=st.floats(1e-3, 0.8))
def test_gains_and_costs_add_up_to_the_mean(ahead: float, off: float) -> None:
    """Gain less cost is the mean of 1 - e^-X, which has a closed form of its own."""
    mean = 1 - 2.718281828459045 ** (off**2 / 2 - ahead)
    assert _mean_saving(ahead, off) - _mean_cost(ahead, off) == pytest.approx(mean, abs=1e-6)
    assert _mean_saving(ahead, off) >= max(mean, 0) - 1e-9
