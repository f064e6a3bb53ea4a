"""Auto: of all policies' plans the one that is the quickest when tried, delays included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from testbed.plan import Plan
from testbed.planning.choice import FEWER
from testbed.planning.cost import CostModel
from testbed.planning.policy import Policy, PolicyError, make_policy, policy_names, register
from testbed.planning.trial import affordable, tried_s
from testbed.planning.view import View

#: Plans predicted to take longer than the best by more than this factor are not tried. Rings are predicted worst: by
#: 1.57 times what a trial says on NetStorm's nine sites with round trips.
SCREEN = 1.5

#: How many plans are tried, at most.
TRIED = 6

#: How many are proposed.
PROPOSED = 4

#: Rounds of a trial: of the second and the third the time counts, since who is done early sends ahead.
ROUNDS = 3


@register("auto")
@dataclass(frozen=True)
class Auto(Policy):
    """Whichever policy suits the network (our design): every policy plans, and the quickest plan is taken.

    Asked are all policies, as they are without options, whose plans are judged by a round's seconds. Those near the
    best prediction are tried by simulation, on networks of up to 16 members; of nearly equal ones the fewest trees
    win. The plan keeps the name of the policy that made it, so that a swap shows who took over. It takes as
    long as all the others together, half of it packing: 230 ms for 6 members, 180 ms for 9, 620 ms for 16 (medians of
    three networks of `benchmarks.wans` each, two cores).
    """

    def plan(self, view: View) -> Plan:
        return self._ranked(view, None)[0]

    def replan(self, view: View, last: Plan) -> Plan:
        return self.proposals(view, last)[0]

    def proposals(self, view: View, last: Plan) -> list[Plan]:
        """The quickest few, no two alike."""
        return self._ranked(view, last)[:PROPOSED]

    def explain(self, view: View, plan: Plan) -> dict[str, Any]:
        """Seconds of a round by each policy, the quickest first; also of those that were not near."""
        seconds = {made.policy: _round_s(made, view) for made in self._plans(view, None)}
        return {"round_s": dict(sorted(seconds.items(), key=lambda its: its[1]))}

    def _ranked(self, view: View, last: Plan | None) -> list[Plan]:
        """The plans near the best one, the one to take first and the others by their seconds."""
        seconds = [(_round_s(plan, view), plan) for plan in _screened(view, self._plans(view, last))]
        near = min(its for its, _ in seconds) * (1 + FEWER)
        seconds.sort(key=lambda one: (len(one[1].trees) if one[0] <= near else float("inf"), one[0]))
        return [plan for _, plan in seconds]

    def _plans(self, view: View, last: Plan | None) -> list[Plan]:
        """What each policy makes of the view. PolicyError with every one's reason when none makes anything of it."""
        others = [make_policy(name) for name in policy_names() if name != self.name]
        plans, reasons = [], []
        for policy in others:
            if policy.measure is not None:
                continue  # its rounds are not like the others'
            try:
                plans.append(policy.plan(view) if last is None else policy.replan(view, last))
            except PolicyError as error:
                reasons.append(str(error))
        if not plans:
            raise PolicyError(f"auto: no policy has a plan: {'; '.join(reasons)}")
        return plans


def _screened(view: View, plans: list[Plan]) -> list[Plan]:
    """The plans that are worth a trial, no two alike."""
    model = CostModel(view)
    predicted = sorted(((model.predict(plan).seconds, plan) for plan in plans), key=lambda one: one[0])
    kept: list[Plan] = []
    for seconds, plan in predicted:
        new = all(plan.shape() != other.shape() for other in kept)
        if new and seconds <= predicted[0][0] * SCREEN and len(kept) < TRIED:
            kept.append(plan)
    return kept


def _round_s(plan: Plan, view: View) -> float:
    """Seconds of a round that follows another."""
    return tried_s(plan, view, ROUNDS) if affordable(view) else CostModel(view).predict(plan).seconds
