from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.controller.replanning.decision import (
    COST,
    LATELY,
    RESTART,
    RESTART_S,
    Decision,
    PlanPerformance,
    SwapRules,
    decide,
    decide_by_measure,
    missing_edge,
)
from testbed.controller.replanning.prediction import PlanJudge, RoundPredictor
from testbed.plan import Plan, Route
from testbed.planning import View
from tests.controller.plans import triangle

pytestmark = pytest.mark.pure

RULES = SwapRules(margin=0.1, dwell_rounds=3)
SETTLED = PlanPerformance(rounds=10)


def decided(
    direct: float,
    performance: PlanPerformance = SETTLED,
    changed: bool = False,
    doubts: Mapping[str, tuple[float, float]] | None = None,
) -> Decision:
    """Return the decision to avoid the direct link, which carries `direct` Mbit/s, by links of 40 Mbit/s."""
    view, current, better = triangle(direct)
    return decide(current, [better], PlanJudge(view, doubts or {}, RoundPredictor()), performance, RULES, changed)[0]


def test_a_large_saving_is_taken_at_once() -> None:
    decision = decided(10)
    assert decision.adopt
    assert decision.current_s is not None and decision.proposed_s < decision.current_s / 2


def test_a_saving_within_the_margin_is_not_taken() -> None:
    assert "10%" in decided(39).why
    assert not decided(39).adopt


def test_a_plan_stands_for_the_dwell_unless_the_network_was_changed() -> None:
    young = decided(10, PlanPerformance(2))
    assert not young.adopt and "2 of 3" in young.why
    assert decided(10, PlanPerformance(2), changed=True).adopt


def test_a_fall_ends_the_dwell_but_not_before_the_first_plan_has_a_whole_round() -> None:
    fell = PlanPerformance(1, since_fall=0)
    assert not decided(10, fell).adopt, "what fell is a declared rate"
    assert decided(10, replace(fell, whole_s=(50.0,))).adopt
    assert decided(10, replace(fell, promised_s=1.0)).adopt, "a later plan is known by the one before"
    assert decided(10, replace(fell, rounds=3)).adopt


def test_a_saving_must_make_up_for_the_swap() -> None:
    last = decided(10, PlanPerformance(10, rounds_left=1, swaps_s=(9.0, 9.0)))
    assert not last.adopt and "may cost" in last.why
    assert decided(10, PlanPerformance(10, rounds_left=1)).adopt
    assert decided(10, PlanPerformance(10, swaps_s=(9.0, 9.0))).adopt


def test_a_saving_in_doubt_is_not_taken() -> None:
    doubts = dict.fromkeys(("a->b", "b->a", "a->c", "c->a"), (0.6, 0.6))
    assert decided(25).adopt
    unsure = decided(25, doubts=doubts)
    assert not unsure.adopt and "surely only" in unsure.why
    assert decided(4, doubts=doubts).adopt


def test_a_round_starts_again_if_a_link_fell_and_rounds_would_be_much_longer() -> None:
    fell = PlanPerformance(10, whole_s=(2.0, 2.0), since_last_s=6.0, since_fall=0)
    decision = decided(1, fell)
    assert decision.adopt and decision.restarts(fell)
    assert not decision.restarts(replace(fell, since_fall=LATELY)), "no link fell"
    enough_s = RESTART * decision.proposed_s + RESTART_S
    for predicted_s, restarts in ((enough_s + 0.1, True), (enough_s - 0.1, False), (None, False)):
        assert replace(decision, predicted_s=predicted_s).restarts(fell) == restarts


def test_the_best_is_chosen_and_the_plan_in_force_is_not_left_for_itself() -> None:
    view, current, better = triangle(10)
    judge = PlanJudge(view, {}, RoundPredictor())
    assert decide(current, [current, better, current.with_epoch(4)], judge, SETTLED, RULES, False)[1] is better
    decision, same = decide(better, [current, better.with_epoch(4)], judge, SETTLED, RULES, False)
    assert not decision.adopt and same.shape() == better.shape()


def test_a_plan_is_not_left_for_one_that_is_slower_than_its_measured_rounds() -> None:
    foreseen = decided(10)
    assert foreseen.current_s is not None
    quick = PlanPerformance(10, whole_s=(foreseen.proposed_s, foreseen.proposed_s * 1.05))
    assert not decided(10, quick).adopt
    held_up = PlanPerformance(10, whole_s=(foreseen.current_s, foreseen.proposed_s))
    assert not decided(10, held_up).adopt  # a loss may have delayed one round
    assert decided(10, replace(held_up, since_fall=0)).adopt  # the link that fell delayed it
    assert not decided(10, replace(quick, since_fall=0, since_last_s=foreseen.proposed_s)).adopt
    assert decided(
        10, replace(quick, since_fall=0, since_last_s=foreseen.current_s)
    ).adopt  # the current round takes as long
    assert decided(10, quick, changed=True).adopt  # these rounds were on another network


def test_a_plan_counts_as_slow_as_its_newest_rounds_if_its_earlier_ones_were_as_predicted() -> None:
    """After a fall TCP lost so much that rounds took four times as long as by the rates, for 25 s."""
    view, current, better = triangle(38)

    def taken(performance: PlanPerformance, predictor: RoundPredictor) -> bool:
        return decide(current, [better], PlanJudge(view, {}, predictor), performance, RULES, False)[0].adopt

    proven = RoundPredictor().with_ratio(current, 1.0)
    predicted_s = proven.predict_s(current, view)
    slow = replace(SETTLED, whole_s=(4 * predicted_s, 3 * predicted_s), since_fall=LATELY - 1)
    assert taken(slow, proven)
    stable = replace(slow, since_fall=LATELY)
    assert not taken(stable, proven), "no link fell: BBR may have paused in both rounds"
    assert taken(replace(stable, whole_s=slow.whole_s * 2), proven), "it does not pause in four in a row"
    assert not taken(slow, RoundPredictor()), "its rounds were never as predicted"
    assert not taken(replace(slow, whole_s=(4 * predicted_s, predicted_s)), proven), "a loss may have delayed one round"
    assert not taken(SETTLED, proven)


def test_a_saving_counts_by_the_fraction_that_swaps_delivered() -> None:
    trusted = decided(10)
    gain = 1 - trusted.proposed_s / (trusted.current_s or 0.0)
    assert trusted.adopt
    distrusted = decided(10, replace(SETTLED, delivered=RULES.margin / gain))
    assert not distrusted.adopt and "of what they were to save" in distrusted.why


def test_a_plan_that_breaks_its_promise_is_judged_before_its_time() -> None:
    young = PlanPerformance(1, whole_s=(50.0,))
    assert not decided(10, young).adopt
    assert not decided(10, replace(young, promised_s=40.0)).adopt
    assert decided(10, replace(young, promised_s=30.0)).adopt


@settings(max_examples=40)
@given(st.floats(1, 39), st.floats(0, 0.3))
def test_less_doubt_never_undoes_a_swap(direct: float, doubt: float) -> None:
    doubts = dict.fromkeys(("a->c", "c->b"), (doubt, 0.0))
    if decided(direct, doubts=doubts).adopt:
        assert decided(direct).adopt


def test_a_swap_is_taken_to_cost_what_swaps_did() -> None:
    assert PlanPerformance(5).cost_s(2.0) == COST * 2.0
    assert PlanPerformance(5, swaps_s=(0.1, 0.2, 0.2, 0.3)).cost_s(2.0) == pytest.approx(0.2)


def test_a_policy_s_own_measure_decides_instead_of_rounds() -> None:
    view, current, worse = triangle(100)
    costs = {current.shape().dumps(): 2.0, worse.shape().dumps(): 1.0}

    def measure(_: View, plan: Plan) -> float:
        return costs[plan.shape().dumps()]

    decision = decide_by_measure(measure, current, worse, view, SETTLED, RULES, False)
    assert decision.adopt and (decision.current_s, decision.proposed_s) == (2.0, 1.0)
    assert "of a step" in decision.why
    assert not decide_by_measure(measure, current, worse, view, PlanPerformance(1), RULES, False).adopt
    assert not decide_by_measure(measure, current, current, view, SETTLED, RULES, False).adopt


def test_a_missing_edge_is_named() -> None:
    view, current, _ = triangle(10)
    assert missing_edge(current, view) == ""
    edges = {pair: edge for pair, edge in view.edges.items() if set(pair) != {"a-w0", "b-w0"}}
    assert missing_edge(current, View(view.members, view.links, view.routes, edges, view.model_bytes)) in (
        "a-w0=>b-w0",
        "b-w0=>a-w0",
    )


def test_a_missing_edge_of_an_auxiliary_route_is_named() -> None:
    view, _, around = triangle(10)
    beside = replace(around, auxiliary=(Route("a-w0", "c-w0", ("b-w0",)),))
    edges = {pair: edge for pair, edge in view.edges.items() if pair != ("a-w0", "b-w0")}
    left = View(view.members, view.links, view.routes, edges, view.model_bytes)
    assert missing_edge(around, left) == ""
    assert missing_edge(beside, left) == "a-w0=>b-w0"
