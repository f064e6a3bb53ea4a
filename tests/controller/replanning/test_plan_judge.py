from __future__ import annotations

from dataclasses import replace

import pytest

from testbed.controller.replanning.plan_judge import Doubts, PlanJudge
from testbed.controller.replanning.prediction import RoundPredictor
from testbed.plan import Plan
from testbed.planning import View
from tests.controller.plans import triangle

pytestmark = pytest.mark.pure


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
