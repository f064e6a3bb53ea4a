from __future__ import annotations

from math import exp, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.controller.replanning.prediction import CHOSEN, KEPT, SPREAD, STRANGE, PlanMeasurement, RoundPredictor
from testbed.planning import View, make_policy, simulate
from testbed.planning.bound import bound
from testbed.planning.simulate import SimulationError
from tests.controller.plans import triangle
from tests.planning.networks import sites, view_of, views

pytestmark = pytest.mark.pure

RATIOS = st.lists(st.floats(1.0, 2.0), min_size=1, max_size=12)


@given(RATIOS, RATIOS)
def test_other_plans_count_like_one_more_ratio_of_a_plan(own: list[float], others: list[float]) -> None:
    _, plan, other = triangle(10)
    predictor = RoundPredictor()
    for ratio in others:
        predictor = predictor.with_ratio(other, ratio)
    unseen, unsure = predictor.correction(plan)
    assert unseen == pytest.approx(max(predictor.correction(other)[0], 0.0) + log(CHOSEN))
    assert unsure == SPREAD
    for ratio in own:
        predictor = predictor.with_ratio(plan, ratio)
    expected, spread = predictor.correction(plan)
    assert spread < unsure
    assert min(own[-KEPT:] + others[-KEPT:]) <= exp(expected) * 1.000001
    assert exp(expected) <= max(own[-KEPT:] + others[-KEPT:]) * 1.000001


def test_predictions_of_a_steady_plan_improve() -> None:
    view, plan, _ = triangle(10)
    predictor, off = RoundPredictor(), []
    for _ in range(6):
        off.append(abs(log(predictor.predict_s(plan, view) / (1.5 * predictor.simulate(plan, view)))))
        predictor = predictor.with_ratio(plan, 1.5)
    assert off == sorted(off, reverse=True)
    assert off[-1] < 0.1 * off[0]


def test_one_strange_round_counts_for_little() -> None:
    _, plan, _ = triangle(10)
    predictor = RoundPredictor()
    for ratio in (1.1, 1.1, 1000.0):
        predictor = predictor.with_ratio(plan, ratio)
    assert exp(predictor.correction(plan)[0]) == pytest.approx(1.1)
    assert exp(RoundPredictor().with_ratio(plan, 1000.0).correction(plan)[0]) == pytest.approx(STRANGE)


def test_another_epoch_and_name_are_the_same_plan() -> None:
    _, plan, _ = triangle(10)
    predictor = RoundPredictor().with_ratio(plan, 1.4)
    assert predictor.correction(plan.with_epoch(7)) == predictor.correction(plan)


def test_a_whole_round_includes_computing() -> None:
    view, plan, _ = triangle(10)
    bare = RoundPredictor().simulate(plan, view)
    assert RoundPredictor(dict.fromkeys(view.names, 0.5)).simulate(plan, view) == pytest.approx(bare + 0.5, rel=0.2)


def test_a_model_of_any_size_is_simulated_in_as_many_steps() -> None:
    """Larger chunks make the round a little longer."""
    view = view_of(sites(("a", "b", 400), ("b", "c", 400)), {"a": 3, "b": 2, "c": 3}, 1_000_000_000)
    plan = make_policy("mst").plan(view)
    exact = simulate(plan, view, rounds=2).seconds
    assert RoundPredictor().simulate(plan, view) == pytest.approx(exact, rel=0.05)


def test_an_edge_that_is_not_there_is_an_error() -> None:
    view, plan, _ = triangle(10)
    with pytest.raises(SimulationError):
        RoundPredictor().predict_s(plan, view.among({"a-w0", "b-w0"}))


@settings(max_examples=30, deadline=None)
@given(views(max_sites=4, max_per_site=2), st.sampled_from(["auto", "packing", "mst", "netstorm", "ring"]), RATIOS)
def test_no_prediction_lies_below_the_bound_of_its_view(view: View, policy: str, ratios: list[float]) -> None:
    plan = make_policy(policy).plan(view)
    predictor = RoundPredictor(ratios={plan.shape().dumps(): tuple(log(ratio / 5) for ratio in ratios)})
    assert predictor.predict_s(plan, view) >= bound(view).seconds * (1 - 1e-6)


def test_a_measurement_corrects_by_the_network_of_its_time() -> None:
    """The direct link fell to a quarter after the rounds, so the plan's correction must not change."""
    (before, plan, _), (now, _, _) = triangle(40), triangle(10)
    whole_s = 1.1 * RoundPredictor().simulate(plan, before)
    predictor = RoundPredictor().with_measurement(PlanMeasurement(plan, before, whole_s, {}))
    expected_s = 1.1 * RoundPredictor().simulate(plan, now)
    assert predictor.with_measurement(PlanMeasurement(plan, before, whole_s, {})).predict_s(plan, now) == pytest.approx(
        expected_s, rel=1e-6
    )


@pytest.mark.parametrize("ratio", [0.0, -1e4, 0.41])
def test_rounds_that_are_impossibly_short_teach_nothing(ratio: float) -> None:
    """A clock was set back in these rounds, or a rate was believed too low."""
    _, plan, _ = triangle(10)
    predictor = RoundPredictor().with_ratio(plan, 1.5)
    assert predictor.with_ratio(plan, ratio) == predictor
