"""What a policy makes of a view, and whether that is worth a swap. Pure; it may take its time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from testbed.controller.replanning.conducting import TrainingAnswer, TrainingQuestion, consider
from testbed.controller.replanning.decision import Decision, Rules, Standing, decide, decide_by, gone
from testbed.controller.replanning.foresight import Foresight, Lesson
from testbed.controller.replanning.plan_judge import Doubts, PlanJudge
from testbed.plan import Plan
from testbed.planning import Policy, PolicyError, View
from testbed.planning.cost import CostModel


@dataclass(frozen=True, slots=True)
class Question:
    """What is known when a plan is considered: the `view` and how far its links may be off, the plan in force, those
    that were before it, and how it has done. `lessons` are what was found out of earlier rounds since.

    `network_changed`: it was declared to be another one. With a reason to do so `anyway` the policy's plan is adopted
    whatever it saves. Where `training` is conducted it is considered too.
    """

    view: View
    doubts: Doubts
    current: Plan
    past: tuple[Plan, ...]
    standing: Standing
    foresight: Foresight
    network_changed: bool = False
    anyway: str = ""
    lessons: tuple[Lesson, ...] = ()
    training: TrainingQuestion | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """`plan` is what is proposed under `view`, None where there is nothing; `foresight` has learned from the lessons.
    It is the `choice`th of the policy's proposals; None of one that was in force before. It took `seconds` of a
    processor. `training` is what was thought of how members train, where that is conducted."""

    view: View
    plan: Plan | None
    decision: Decision
    foresight: Foresight
    choice: int | None = 0
    seconds: float = 0.0
    training: TrainingAnswer | None = None


#: A policy's plan with what is not the policy's business; PolicyError when it is none for the run.
Dress = Callable[[Plan, View], Plan]


def propose(
    policy: Policy,
    dress: Dress,
    rules: Rules,
    question: Question,
    processor: Callable[[], float],
) -> Proposal:
    """The policy's plan, or one that was in force before, and the judgement of it; `processor` says the seconds that
    this thread has used of one."""
    began_s = processor()
    proposal = _propose(policy, dress, rules, question)
    if question.training is not None:
        proposal = _conducted(proposal, question.training, policy, dress, question)
    return replace(proposal, seconds=processor() - began_s)


def _conducted(
    proposal: Proposal, training: TrainingQuestion, policy: Policy, dress: Dress, asked: Question
) -> Proposal:
    """The proposal with what members had best do between rounds; trees that are to change anyway change with that."""
    trees = proposal.plan if proposal.decision.adopt and proposal.plan is not None else asked.current
    if gone(trees, asked.view):
        return proposal
    try:
        answer = consider(training, policy, dress, trees, asked.view, proposal.foresight)
    except PolicyError as error:
        return replace(proposal, decision=replace(proposal.decision, why=f"{proposal.decision.why}; {error}"))
    if answer is None or answer.plan is None:
        return replace(proposal, training=answer)
    decision = Decision(True, answer.verdict.why, answer.current_s, answer.proposed_s)
    return replace(proposal, plan=answer.plan, decision=decision, choice=None, training=answer)


def _uncontradicted(asked: Question) -> View:
    """The view, with links that carry at least what the plan in force put on them in its newest rounds.

    Each round that is over carried its bytes in its time, whatever trains showed. Not where a link fell since, nor
    where rates were declared or told.
    """
    view, current, standing = asked.view, asked.current, asked.standing
    whole = not (current.groups or current.auxiliary or current.link_codecs)
    known = view.knowledge == "measured" and 0 < standing.longest_s < inf and not standing.fell
    if not (whole and known) or asked.network_changed or gone(current, view):
        return view
    drains = CostModel(view).drains(current)
    return view.scaled({name: s / standing.longest_s for name, s in drains.items() if s > standing.longest_s})


def _propose(policy: Policy, dress: Dress, rules: Rules, asked: Question) -> Proposal:
    asked = replace(asked, view=_uncontradicted(asked))
    view, current = asked.view, asked.current
    try:
        plans = [dress(plan, view) for plan in policy.proposals(view, current)]
    except PolicyError as error:
        return Proposal(view, None, Decision(False, str(error), None, float("inf")), asked.foresight)
    lacks = gone(current, view)
    without = f"the plan in force uses {lacks}, which is gone"
    if policy.measure is not None:
        decision = (
            Decision(True, without, None, policy.measure(view, plans[0]))
            if lacks
            else decide_by(policy.measure, current, plans[0], view, asked.standing, rules, asked.network_changed)
        )
        return Proposal(view, plans[0], _anyway(decision, asked, plans[0]), asked.foresight)
    foresight = asked.foresight
    for lesson in asked.lessons:
        foresight = foresight.taught(lesson)
    judge = PlanJudge(view, asked.doubts, foresight)
    if lacks or asked.anyway:
        seconds, number = min((judge.seconds(plan), number) for number, plan in enumerate(plans))
        current_s = None if lacks else judge.seconds(current)
        decision = Decision(True, without, current_s, seconds)
        return Proposal(view, plans[number], _anyway(decision, asked, plans[number]), foresight, number)
    past = [plan for plan in asked.past if plan.members == current.members and not gone(plan, view)]
    decision, best = decide(current, [*plans, *past], judge, asked.standing, rules, asked.network_changed)
    return Proposal(view, best, decision, foresight, plans.index(best) if best in plans else None)


def _anyway(decision: Decision, asked: Question, plan: Plan) -> Decision:
    if not asked.anyway:
        return decision
    return replace(decision, adopt=asked.current.shape() != plan.shape(), why=asked.anyway)
