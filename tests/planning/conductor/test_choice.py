"""Which candidate is chosen: by simulated networks and tasks, and by what must be so of any situation."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.planning.conductor import FIRST, Candidate, Situation, TrainedHistory, candidates, choose, learn
from testbed.planning.conductor.choice import SAMPLES, _above, _below
from tests.planning.conductor.runs import PARTS, Truth, conduct

pytestmark = pytest.mark.unit

STEPS = 240


@pytest.mark.parametrize("seed", range(2))
def test_where_rounds_cost_nothing_it_stays_with_gradients(seed: int) -> None:
    done = conduct(Truth(compute_s=0.1, exchange_s=0.005, horizon=1000.0), STEPS, seed)
    assert [its for _, its in done.chosen] == [FIRST]


@pytest.mark.parametrize("seed", range(2))
def test_a_slow_network_has_members_take_many_steps(seed: int) -> None:
    truth = Truth(compute_s=0.1, exchange_s=2.0, horizon=300.0)
    done = conduct(truth, STEPS, seed)
    flat_s = STEPS * (truth.compute_s + truth.exchange_s)
    assert done.last.steps >= 8
    assert done.seconds < flat_s / 6
    assert truth.loss(done.worth) < truth.loss(STEPS) * (1 + 2 * SAMPLES)


@pytest.mark.parametrize("seed", range(2))
def test_where_data_conflicts_members_take_fewer_steps(seed: int) -> None:
    """The same network: what is learned alone is undone by merging, and the longer members are alone the more."""
    agreeing, conflicting = (
        conduct(Truth(compute_s=0.1, exchange_s=2.0, horizon=horizon), STEPS, seed) for horizon in (300.0, 4.0)
    )
    assert conflicting.last.steps < agreeing.last.steps
    assert conflicting.last.steps <= 8


def test_a_scheme_that_does_not_pay_is_taken_back() -> None:
    """Local steps are worth a tenth here, which nobody knew: what was learned sends members back, and they stay."""
    truth = Truth(
        compute_s=0.1, exchange_s=0.05, horizon=1.0, outer={"local_sgd": 0.1, "diloco": 0.1, "sparseloco": 0.1}
    )
    done = conduct(truth, STEPS)
    assert done.last.scheme == FIRST.scheme
    assert done.steps_under("gradients") > STEPS / 2


seconds = st.floats(1e-3, 20.0)


@settings(max_examples=40, deadline=None)
@given(
    compute_s=seconds,
    exchange_s=seconds,
    margin=st.floats(0.02, 0.5),
    current=st.sampled_from(list(candidates("muon"))),
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
    verdict = choose(situation, learn(history.stretches), candidates("muon"))
    terms = {its.candidate: its for its in verdict.terms}
    chosen, flat = terms[str(verdict.candidate)], terms[str(FIRST)]
    assert verdict.change == (verdict.candidate != current)
    if verdict.change:
        assert chosen.effective_s <= flat.effective_s * (1 + 1e-9)
    if verdict.change and exchange_s < margin * (compute_s + exchange_s):
        assert verdict.candidate.scheme == FIRST.scheme
    assert [its.effective_s for its in verdict.terms] == sorted(its.effective_s for its in verdict.terms)
    assert verdict.why
    assert sum("chosen" in its.verdict for its in verdict.terms) == 1


@given(ahead=st.floats(-1.0, 1.0), off=st.floats(1e-3, 0.8))
def test_gains_and_costs_add_up_to_the_mean(ahead: float, off: float) -> None:
    """Gain less cost is the mean of 1 - e^-X, which has a closed form of its own."""
    mean = 1 - 2.718281828459045 ** (off**2 / 2 - ahead)
    assert _above(ahead, off) - _below(ahead, off) == pytest.approx(mean, abs=1e-6)
    assert _above(ahead, off) >= max(mean, 0) - 1e-9
