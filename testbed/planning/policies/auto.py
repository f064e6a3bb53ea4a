"""Auto: of all policies' plans the one that is the quickest when tried, delays included."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from typing import Any

from testbed.plan import Plan
from testbed.planning.choice import FEWER
from testbed.planning.cost import CostModel
from testbed.planning.policy import Policy, PolicyError, is_own, make_policy, own_policy_names, register
from testbed.planning.trial import affordable, tried_s
from testbed.planning.view import View

log = logging.getLogger(__name__)

#: Plans predicted to take longer than the best by more than this factor are not tried. Rings are predicted worst: by
#: 1.57 times what a trial says on NetStorm's nine sites with round trips.
SCREEN = 1.5

#: How many plans are tried, at most.
TRIED = 6

#: How many are proposed.
PROPOSED = 4

#: Rounds of a trial: of the second and the third the time counts, since a member that is done early begins to send.
ROUNDS = 3

#: A plan and the seconds of a round under it.
Judged = tuple[float, Plan]


@register("auto")
@dataclass(frozen=True)
class Auto(Policy):
    """Whichever policy suits the network (our design): every policy plans, and the quickest plan is taken.

    Asked are the project's own policies and those that `also` names, as they are without options, whose plans are
    judged by a round's seconds. One that raises is left out, and a line in the log says so. Those near the best
    prediction are tried by simulation, on networks of up to 16 members; of nearly equal ones the fewest trees win. The
    plan keeps the name of the policy that made it, so that a swap shows which policy took over. It takes as long as all
    the others together, half of it packing: 230 ms for 6 members, 180 ms for 9, 620 ms for 16 (medians of three
    networks of `benchmarks.support.wans` each, two cores), 6 s for 64.
    """

    also: tuple[str, ...] = ()

    def plan(self, view: View) -> Plan:
        return self._ranked(view, None)[0]

    def replan(self, view: View, last: Plan) -> Plan:
        return self.proposals(view, last)[0]

    def proposals(self, view: View, last: Plan) -> list[Plan]:
        """The quickest few, no two alike."""
        return self._ranked(view, last)[:PROPOSED]

    def explain(self, view: View, plan: Plan) -> dict[str, Any]:
        """Seconds of a round by each policy, the quickest first; also of those that were not near."""
        tried = _tried(view, _predicted(view, self._plans(view, None)))
        return {"round_s": {made.policy: seconds for seconds, made in sorted(tried, key=_seconds)}}

    def _ranked(self, view: View, last: Plan | None) -> list[Plan]:
        """The plans near the best one, the one to take first and the others by their seconds."""
        tried = _tried(view, _screened(_predicted(view, self._plans(view, last))))
        near = min(map(_seconds, tried)) * (1 + FEWER)
        tried.sort(key=lambda one: (len(one[1].trees) if one[0] <= near else float("inf"), one[0]))
        return [plan for _, plan in tried]

    def _plans(self, view: View, last: Plan | None) -> list[Plan]:
        """What each policy makes of the view. PolicyError with every one's reason when none makes anything of it."""
        names = dict.fromkeys((*own_policy_names(), *self.also))
        others = [make_policy(name) for name in names if name != self.name]
        plans, reasons = [], []
        for policy in others:
            if policy.measure is not None:
                continue  # its rounds are not like the others'
            try:
                made = policy.plan(view) if last is None else policy.replan(view, last)
                if not is_own(policy):
                    CostModel(view).predict(made)  # raises where the plan is for another network
                plans.append(made)
            except PolicyError as error:
                reasons.append(str(error))
                _leave_out(policy, str(error))
            except Exception as error:
                if is_own(policy):
                    raise
                _leave_out(policy, f"{type(error).__name__}: {error}")
        if not plans:
            raise PolicyError(f"auto: no policy has a plan: {'; '.join(reasons)}")
        return plans


def _leave_out(policy: Policy, why: str) -> None:
    if not is_own(policy):
        _log_once(policy.name, why)


@cache
def _log_once(name: str, why: str) -> None:
    log.warning("auto leaves out the policy %s: %s", name, why)


def _predicted(view: View, plans: list[Plan]) -> list[Judged]:
    """The plans by their predicted seconds."""
    model = CostModel(view)
    return sorted(((model.predict(plan).seconds, plan) for plan in plans), key=_seconds)


def _screened(predicted: list[Judged]) -> list[Judged]:
    """The plans that are worth a trial, no two alike."""
    kept: list[Judged] = []
    for seconds, plan in predicted:
        new = all(plan.shape() != other.shape() for _, other in kept)
        if new and seconds <= predicted[0][0] * SCREEN and len(kept) < TRIED:
            kept.append((seconds, plan))
    return kept


def _tried(view: View, predicted: list[Judged]) -> list[Judged]:
    """The plans with the seconds of a round that follows another, as predicted where a trial takes too long."""
    return [(tried_s(plan, view, ROUNDS), plan) for _, plan in predicted] if affordable(view) else predicted


def _seconds(judged: Judged) -> float:
    return judged[0]
