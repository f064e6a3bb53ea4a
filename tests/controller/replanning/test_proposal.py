from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.controller.replanning.decision import PlanPerformance, SwapRules
from testbed.controller.replanning.prediction import CHOSEN, RoundPredictor
from testbed.controller.replanning.proposal import PlanQuestion, Proposal, propose
from testbed.controller.replanning.training import TrainingMonitor
from testbed.plan import Plan
from testbed.planning import View, make_policy
from testbed.planning.bound import bound
from testbed.planning.conductor import SchemeCatalog
from testbed.schemes import TRAITS
from tests.controller.plans import triangle
from tests.controller.replanning.test_training import GRADIENTS, JOB, reported

pytestmark = pytest.mark.pure

RULES = SwapRules(margin=0.1, dwell_rounds=3)


def proposed(
    view: View, current: Plan, performance: PlanPerformance, predictor: RoundPredictor | None = None
) -> Proposal:
    question = PlanQuestion(view, {}, current, (), performance, predictor or RoundPredictor())
    return propose(make_policy("mst"), lambda plan, _: plan, RULES, question, lambda: 0.0)


def test_a_link_carries_at_least_the_bytes_of_its_rounds() -> None:
    """A link is believed to carry 5 Mbit/s, but its rounds of 1 s need 33 Mbit/s."""
    view, current, _ = triangle(5)
    found = proposed(view, current, PlanPerformance(10, whole_s=(1.0, 1.02)))
    assert found.view.links["a->b"].rate_bps == pytest.approx(8 * 4e6 * 1514 / 1448)
    assert found.view.links["a->c"].rate_bps == view.links["a->c"].rate_bps
    assert not found.decision.adopt


@pytest.mark.parametrize("knowledge", ["declared", "oracle"])
def test_rates_that_are_told_stay(knowledge: str) -> None:
    view, current, _ = triangle(5)
    told = replace(view, knowledge=knowledge)  # type: ignore[arg-type]
    assert proposed(told, current, PlanPerformance(10, whole_s=(1.0, 1.02))).view == told


def test_a_link_that_fell_since_carries_less_than_in_the_rounds_before() -> None:
    view, current, _ = triangle(5)
    found = proposed(view, current, PlanPerformance(10, whole_s=(1.0, 1.02), since_last_s=5.0, since_fall=0))
    assert found.view == view and found.decision.adopt


@settings(max_examples=30, deadline=None)
@given(st.floats(1, 40), st.floats(0.3, 20), st.floats(0.2, 5))
def test_neither_plan_is_expected_to_take_less_than_the_bound(direct: float, round_s: float, learned: float) -> None:
    view, current, other = triangle(direct)
    predictor = RoundPredictor().with_ratio(current, learned).with_ratio(other, learned)
    found = proposed(view, current, PlanPerformance(10, whole_s=(round_s, round_s)), predictor)
    least_s = bound(found.view).seconds * (1 - 1e-6)
    assert found.decision.proposed_s >= least_s
    assert found.decision.current_s is not None and found.decision.current_s >= least_s


def test_exchanges_over_the_old_trees_do_not_correct_the_new_ones() -> None:
    view, current, _ = triangle(5)
    current = replace(current, training=GRADIENTS)
    monitor = TrainingMonitor(400, 0.1, JOB, SchemeCatalog(TRAITS))
    for number in range(1, 9):
        monitor.round_over(reported(number, current, number, 1, dict.fromkeys(current.members, 0.1)), current)
    performance = PlanPerformance(10, whole_s=(7.0, 7.0), since_fall=0)
    question = PlanQuestion(
        view, {}, current, (), performance, RoundPredictor(), training=monitor.question([7.0], current)
    )
    policy = make_policy("mst")
    found = propose(policy, lambda plan, _: replace(plan, training=GRADIENTS), RULES, question, lambda: 0.0)
    assert found.training is not None
    flat = next(its for its in found.training.verdict.terms if its.candidate == "gradients, fp32")
    expected_s = CHOSEN * RoundPredictor().simulate(policy.plan(view), view)
    assert flat.exchange_s == pytest.approx(expected_s, rel=0.01)
