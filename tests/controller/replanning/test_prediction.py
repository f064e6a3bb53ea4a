from __future__ import annotations

from dataclasses import replace
from math import exp, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.controller.replanning import prediction
from testbed.controller.replanning.prediction import (
    CHOSEN,
    KEPT,
    SPREAD,
    STRANGE,
    Doubts,
    PlanJudge,
    PlanMeasurement,
    RoundPredictor,
)
from testbed.plan import Plan
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


def test_rounds_of_a_member_alone_that_computes_beside_them_teach_nothing() -> None:
    view, _, _ = triangle(10)
    alone = view.among(view.names[:1])
    plan = make_policy("mst").plan(alone)
    measured = PlanMeasurement(plan, alone, whole_s=0.5, compute_s={alone.names[0]: 0.0})
    assert RoundPredictor().with_measurement(measured).ratios == {}


def test_another_epoch_and_name_are_the_same_plan() -> None:
    _, plan, _ = triangle(10)
    predictor = RoundPredictor().with_ratio(plan, 1.4)
    assert predictor.correction(plan.with_epoch(7)) == predictor.correction(plan)


def test_a_whole_round_includes_computing() -> None:
    view, plan, _ = triangle(10)
    bare = RoundPredictor().simulate(plan, view)
    assert RoundPredictor(dict.fromkeys(view.names, 0.5)).simulate(plan, view) == pytest.approx(bare + 0.5, rel=0.2)


@pytest.mark.parametrize("compute_s", [0.1, 10.0])
def test_of_steps_beside_a_round_the_longer_counts(compute_s: float) -> None:
    view, plan, better = triangle(10)
    computing = dict.fromkeys(view.names, compute_s)
    for each in (plan, better):
        bare_s = RoundPredictor().simulate(each, view)
        assert RoundPredictor(computing, covered=1.0).simulate(each, view) == max(bare_s, compute_s)
        part_s = RoundPredictor(computing, covered=7 / 8).simulate(each, view)
        assert part_s == pytest.approx(max(bare_s + compute_s / 8, compute_s), rel=0.05)


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


def seen(*plans: Plan) -> RoundPredictor:
    """Return a predictor that knows these plans well, so that only links are in doubt."""
    predictor = RoundPredictor()
    for plan in plans:
        for _ in range(5):
            predictor = predictor.with_ratio(plan, 1.0)
    return predictor


def saves(view: View, doubts: Doubts, predictor: RoundPredictor, current: Plan, proposed: Plan) -> float:
    judge = PlanJudge(view, doubts, predictor)
    return judge.sure_saving_s(current, proposed, judge.seconds(current))


def test_what_a_plan_saves_is_surely_less_the_more_its_links_are_in_doubt() -> None:
    view, short, around = triangle(10)
    predictor = seen(short, around)
    expected = predictor.predict_s(short, view) - predictor.predict_s(around, view)
    sure = saves(view, {}, predictor, short, around)
    doubtful = saves(view, {"a->c": (0.3, 0.3), "c->b": (0.3, 0.3)}, predictor, short, around)
    assert doubtful < sure < expected


def test_a_link_that_may_carry_more_makes_no_plan_over_it_look_worse() -> None:
    view, short, around = triangle(10)
    predictor = seen(short, around)
    doubt = {"a->c": (0.0, 0.5), "c->b": (0.0, 0.5)}
    assert saves(view, doubt, predictor, short, around) >= saves(view, {}, predictor, short, around)


def test_what_both_plans_share_is_no_advantage_of_either() -> None:
    view, short, _ = triangle(10)
    doubts = dict.fromkeys(view.links, (0.3, 0.3))
    judge = PlanJudge(view, doubts, seen(short))
    assert abs(judge.sure_saving_s(short, short, judge.seconds(short))) < 0.1 * judge.seconds(short)


def test_plans_that_were_in_force_are_surer_than_others() -> None:
    view, short, around = triangle(10)
    known = saves(view, {}, seen(short, around), short, around)
    assert saves(view, {}, seen(short), short, around) < known


def test_capacities_of_edges_without_routes_are_in_doubt_too() -> None:
    view, short, around = triangle(10)
    bare = replace(view, links={}, routes={})
    doubts = {"a-w0=>c-w0": (0.3, 0.3), "c-w0=>b-w0": (0.3, 0.3)}
    sure, doubtful = (saves(bare, its, RoundPredictor(), short, around) for its in ({}, doubts))
    assert doubtful < sure


def test_the_plans_that_were_measured_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "KEPT_PLANS", 2)
    view, plan, other = triangle(10)
    oldest = make_policy("star", {"server": "c-w0"}).plan(view)
    predictor = RoundPredictor()
    for measured in (plan, oldest, plan, other):
        predictor = predictor.with_ratio(measured, 1.4)
    assert list(predictor.ratios) == [each.shape().dumps() for each in (plan, other)]
    assert [len(own) for own in predictor.ratios.values()] == [2, 1]
