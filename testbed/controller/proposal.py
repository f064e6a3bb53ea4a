"""What a policy makes of a view, and whether that is worth a swap. Pure; it may take its time."""

from __future__ import annotations

from dataclasses import dataclass, replace

from testbed.controller.decision import Decision, Rules, Standing, decide
from testbed.controller.spec import ControllerSpec
from testbed.plan import Plan
from testbed.planning import Policy, PolicyError, View


@dataclass(frozen=True, slots=True)
class Proposal:
    """`plan` is what the policy proposes under `view`, None where it has nothing to propose."""

    view: View
    plan: Plan | None
    decision: Decision


def propose(
    policy: Policy,
    spec: ControllerSpec,
    view: View,
    current: Plan,
    standing: Standing,
    network_changed: bool,
    anyway: str,
) -> Proposal:
    """The policy's plan when `current` is in force, and the judgement of it.

    It is adopted whatever it saves, if it is another one and there is a reason to do so `anyway`.
    """
    try:
        plan = spec.dress(policy.replan(view, current), view)
    except PolicyError as error:
        return Proposal(view, None, Decision(False, str(error), None, float("inf")))
    rules = Rules(1.0 if spec.hold else spec.margin, spec.dwell_rounds)  # nothing saves all of a round
    decision = decide(current, plan, view, standing, rules, network_changed, policy.measure)
    if anyway:
        decision = replace(decision, adopt=current.shape() != plan.shape(), why=anyway)
    return Proposal(view, plan, decision)
