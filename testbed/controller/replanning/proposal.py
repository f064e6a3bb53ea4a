"""A proposal of another plan, and the decision whether it is worth a swap. Pure; it may take long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from testbed.controller.replanning.decision import (
    Decision,
    PlanPerformance,
    SwapRules,
    decide,
    decide_by_measure,
    missing_edge,
)
from testbed.controller.replanning.prediction import Doubts, PlanJudge, PlanMeasurement, RoundPredictor
from testbed.controller.replanning.training import TrainingAnswer, TrainingQuestion, choose_training
from testbed.plan import Plan
from testbed.planning import Policy, PolicyError, View
from testbed.planning.cost import CostModel


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    """The state of a run from which a plan is proposed: its network, the plan in force and its rounds."""

    view: View
    #: The uncertainty of the view's links.
    doubts: Doubts
    #: The plan in force, and earlier plans that may return.
    current: Plan
    earlier_plans: tuple[Plan, ...]
    #: The rounds under the plan in force.
    performance: PlanPerformance
    predictor: RoundPredictor
    #: Whether another network was declared.
    network_changed: bool = False
    #: The reason to adopt the policy's plan whatever it saves, or "".
    adopt_because: str = ""
    #: Measured rounds that the predictor has not learned from yet.
    measurements: tuple[PlanMeasurement, ...] = ()
    #: The inputs of the choice of how members train, in runs whose plans say it.
    training: TrainingQuestion | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposed plan, and the decision on it."""

    #: The view that the plan was made from.
    view: View
    #: The proposed plan, or None if the policy has none.
    plan: Plan | None
    decision: Decision
    #: The predictor, which has learned from the question's measurements.
    predictor: RoundPredictor
    #: The index of the plan among the policy's proposals; None for the first plan, an earlier one, or another training.
    choice: int | None = 0
    #: The processor time of the proposal in seconds.
    seconds: float = 0.0
    #: The choice of how members train, in runs whose plans say it.
    training: TrainingAnswer | None = None


#: Completes a policy's plan for the run; raises PolicyError if the run can't follow it.
Dress = Callable[[Plan, View], Plan]


def propose(
    policy: Policy,
    dress: Dress,
    rules: SwapRules,
    question: PlanQuestion,
    processor: Callable[[], float],
) -> Proposal:
    """Propose the best of the policy's plans and of earlier plans, and decide on it.

    `processor` returns the processor time of this thread in seconds.
    """
    began_s = processor()
    proposal = _with_training(_propose(policy, dress, rules, question), policy, dress, question)
    return replace(proposal, seconds=processor() - began_s)


def _with_training(proposal: Proposal, policy: Policy, dress: Dress, question: PlanQuestion) -> Proposal:
    """Return the proposal with a choice of how members train, over the trees that the proposal adopts or keeps."""
    adopted = proposal.plan if proposal.decision.adopt else None
    trees = adopted or question.current
    if question.training is None or missing_edge(trees, question.view):
        return proposal
    # Exchanges were measured over the trees in force, and say nothing about others.
    asked = replace(question.training, exchange_s=None) if adopted else question.training
    try:
        answer = choose_training(asked, policy, dress, trees, question.view, proposal.predictor)
    except PolicyError as error:
        return replace(proposal, decision=replace(proposal.decision, why=f"{proposal.decision.why}; {error}"))
    if answer is None or answer.plan is None:
        return replace(proposal, training=answer)
    decision = Decision(True, answer.verdict.why, answer.current_s, answer.proposed_s)
    return replace(proposal, plan=answer.plan, decision=decision, choice=None, training=answer)


def _uncontradicted(question: PlanQuestion) -> View:
    """Return the view with rates at which the newest rounds were possible.

    A link carried the plan's bytes in the time of a round, whatever trains showed, so its rate is at least that. The
    view stays unchanged if a link fell in these rounds, if another network was declared, or if rates are not measured.
    """
    view, current, measured_s = question.view, question.current, question.performance.measured_s
    whole = not (current.groups or current.auxiliary or current.link_codecs)
    known = view.knowledge == "measured" and 0 < measured_s < inf and not question.performance.fell
    if not (whole and known) or question.network_changed or missing_edge(current, view):
        return view
    drains = CostModel(view).drains(current)
    return view.scaled({name: s / measured_s for name, s in drains.items() if s > measured_s})


def _propose(policy: Policy, dress: Dress, rules: SwapRules, question: PlanQuestion) -> Proposal:
    """Return the proposal of a plan; `_with_training` may add a choice of how members train."""
    question = replace(question, view=_uncontradicted(question))
    view, current = question.view, question.current
    try:
        plans = [dress(plan, view) for plan in policy.proposals(view, current)]
    except PolicyError as error:
        return Proposal(view, None, Decision(False, str(error), None, float("inf")), question.predictor)
    lacks = missing_edge(current, view)
    without = f"the plan in force uses {lacks}, which is gone"
    if policy.measure is not None:
        decision = (
            Decision(True, without, None, policy.measure(view, plans[0]))
            if lacks
            else decide_by_measure(
                policy.measure, current, plans[0], view, question.performance, rules, question.network_changed
            )
        )
        return Proposal(view, plans[0], _adopted_because(decision, question, plans[0]), question.predictor)
    predictor = question.predictor
    for measured in question.measurements:
        predictor = predictor.with_measurement(measured)
    judge = PlanJudge(view, question.doubts, predictor)
    if lacks or question.adopt_because:
        seconds, number = min((judge.seconds(plan), number) for number, plan in enumerate(plans))
        current_s = None if lacks else judge.seconds(current)
        decision = Decision(True, without, current_s, seconds)
        return Proposal(view, plans[number], _adopted_because(decision, question, plans[number]), predictor, number)
    earlier = [
        plan for plan in question.earlier_plans if plan.members == current.members and not missing_edge(plan, view)
    ]
    decision, best = decide(current, [*plans, *earlier], judge, question.performance, rules, question.network_changed)
    return Proposal(view, best, decision, predictor, plans.index(best) if best in plans else None)


def _adopted_because(decision: Decision, question: PlanQuestion, plan: Plan) -> Decision:
    """Return `decision`; if the question has `adopt_because`, one to adopt the plan unless it is in force already."""
    if not question.adopt_because:
        return decision
    return replace(decision, adopt=question.current.shape() != plan.shape(), why=question.adopt_because)
