"""Rounds as the training monitor gathers them, and the choices made from them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from testbed.controller.model.round_log import ReportedRound
from testbed.controller.replanning.prediction import RoundPredictor
from testbed.controller.replanning.training import TrainingAnswer, TrainingMonitor, choose_training
from testbed.plan import Plan, TrainingChoice, bytes_through
from testbed.planning import View, make_policy
from testbed.planning.conductor import SchemeCatalog
from testbed.protocol import FragmentDrift, Job, Report
from testbed.schemes import TRAITS
from tests.controller.plans import triangle

pytestmark = pytest.mark.pure

JOB = Job(rounds=400, workload={"optimizer": "adam"}, round_timeout_s=120.0)
LOCAL = TrainingChoice("local_sgd", {"every": 4})
GRADIENTS = TrainingChoice("gradients")


def reported(number: int, plan: Plan, steps: int, count: int, step_s: dict[str, float]) -> ReportedRound:
    """Return a round after `count` more steps, `steps` in all; losses fall as 3, 3/2, 3/3, …"""
    reports = {}
    for member in plan.members:
        began_s = 100.0 + 5 * number
        reports[member] = Report(
            member=member,
            round=number,
            epoch=plan.epoch,
            started_s=began_s,
            finished_s=began_s + 4,
            compute_s=step_s[member] * count,
            paced_s=0.0,
            sent_bytes=1,
            received_bytes=1,
            lost=0,
            duplicated=0,
            metrics={"steps": float(steps), "agreed_loss": 3 / number, "loss": 2.9 / number},
            drift=(FragmentDrift(0, 1.0, apart=2.0, moved=4.0),) if count > 1 else (),
        )
    return ReportedRound(number, reports)


def answer(slowest_s: float) -> tuple[TrainingAnswer, View]:
    """Return the choice after eight rounds of gradients of 4 s each; one member computes a step in `slowest_s`."""
    view, plan, _ = triangle(10)
    plan = replace(plan, training=GRADIENTS)
    monitor = TrainingMonitor(400, 0.1, JOB, SchemeCatalog(TRAITS))
    step_s = dict(zip(plan.members, (0.1, 0.1, slowest_s), strict=True))
    for number in range(1, 9):
        monitor.round_over(reported(number, plan, number, 1, step_s), plan)
    found = choose_training(
        monitor.question([4.0], plan), make_policy("mst"), lambda made, _: made, plan, view, RoundPredictor()
    )
    assert found is not None
    return found, view


def test_slow_rounds_have_members_send_less_under_another_plan() -> None:
    """The loss falls steeply, so a codec is chosen: local steps may cost too much progress."""
    found, _ = answer(0.1)
    assert found.plan is not None and found.plan.training == GRADIENTS
    assert found.plan.codec != "fp32" and found.verdict.change
    assert found.plan.codec == found.verdict.candidate.codec
    written = found.to_json()
    assert written["why"] == found.verdict.why and len(written["terms"]) == len(found.verdict.terms)


def test_a_member_alone_has_no_exchange_to_save() -> None:
    view, plan, _ = triangle(10)
    alone = view.among({"a-w0"})
    plan = replace(make_policy("mst").plan(alone), training=GRADIENTS)
    monitor = TrainingMonitor(400, 0.1, JOB, SchemeCatalog(TRAITS))
    for number in range(1, 9):
        monitor.round_over(reported(number, plan, number, 1, {"a-w0": 0.1}), plan)
    found = choose_training(
        monitor.question([0.1], plan), make_policy("mst"), lambda made, _: made, plan, alone, RoundPredictor()
    )
    assert found is not None and not found.verdict.change


def test_local_steps_are_limited_by_the_wait_for_the_slowest_member() -> None:
    """Steps take 5.1 s and 0.1 s. A quarter of the timeout of 120 s, 30 s, is six steps; 4 is the next candidate."""
    found, _ = answer(5.1)
    assert (
        max(
            int(its.candidate.split(" every ")[1].split()[0]) for its in found.verdict.terms if "every" in its.candidate
        )
        == 4
    )


def test_steps_count_for_the_plan_under_which_they_were_taken() -> None:
    """The first round under another plan reduces steps that were taken under the plan before it."""
    _, plan, _ = triangle(10)
    monitor = TrainingMonitor(400, 0.1, JOB, SchemeCatalog(TRAITS))
    first, then = replace(plan, training=GRADIENTS), replace(plan, epoch=1, training=LOCAL)
    step_s = dict.fromkeys(plan.members, 0.1)
    monitor.round_over(reported(1, first, 1, 1, step_s), first)
    monitor.round_over(reported(2, then, 2, 1, step_s), then)
    monitor.round_over(reported(3, then, 6, 4, step_s), then)
    one, other = monitor.question([], then).stretches
    assert (one.candidate.scheme, one.began, one.ended) == ("gradients", 0, 2)
    assert (other.candidate.scheme, other.began, other.ended, other.apart) == ("local_sgd", 2, 6, 0.5)
    assert monitor.steps_left == 394
    assert monitor.compute_s(4) == pytest.approx(dict.fromkeys(plan.members, 0.4))


def test_rounds_of_how_members_train_count_through_swaps_of_trees() -> None:
    _, plan, _ = triangle(10)
    monitor = TrainingMonitor(400, 0.1, JOB, SchemeCatalog(TRAITS))
    local, swapped = replace(plan, training=LOCAL), replace(plan, epoch=1, training=LOCAL)
    step_s = dict.fromkeys(plan.members, 0.1)
    for number in range(1, 9):
        monitor.round_over(reported(number, local, 4 * number, 4, step_s), local if number < 7 else swapped)
    assert monitor.question([], swapped).rounds == 8
    assert monitor.question([], replace(plan, training=GRADIENTS)).rounds == 0


def test_a_codec_that_a_scheme_is_made_for_has_that_scheme_s_share() -> None:
    schemes = SchemeCatalog(TRAITS)
    share = TRAITS["sparseloco"].round_share
    assert share == 2.0
    assert schemes.coded_bytes("sparse", 4000, "fp32") == share * 100
    assert schemes.coded_bytes("fp32", 200, "sparse") == 4000 * 2 // (share * 1)
    assert schemes.coded_bytes("int8", 4000, "fp32") == bytes_through("int8", 4000, "fp32")
