"""Auto: among all policies' plans, the one with the shortest round in a trial, delays included."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import Any

from testbed.plan import Plan
from testbed.planning.cost import CostModel
from testbed.planning.policy import (
    REGISTRY,
    Policy,
    PolicyError,
    check_plan,
    is_own,
    make_policy,
    policy_names,
    register,
)
from testbed.planning.simulate import affordable, tried_s
from testbed.planning.tree_choice import FEWER
from testbed.planning.view import View

log = logging.getLogger(__name__)

#: Plans whose predicted time exceeds the best by more than this factor are not tried. The predictions of rings are the
#: least exact: 1.57 times the time of a trial on NetStorm's nine sites with round trips.
SCREEN = 1.5

#: The most plans that are tried.
TRIED = 6

#: The most plans that are proposed.
PROPOSED = 4

#: Rounds of a trial. The time of the second and the third counts, because a member that is done early begins to send.
ROUNDS = 3

#: The seconds of a round under a plan, and the plan.
Judged = tuple[float, Plan]


@register("auto")
@dataclass(frozen=True)
class Auto(Policy):
    """The policy that suits the network [ours]: every policy plans, and the plan with the shortest round is taken.

    The project's own policies plan with their default options, except those with a measure of their own. A plug-in that
    raises, or whose plan does not fit the view, is left out, with a warning in the log. On networks of up to 16 members
    the plans near the best prediction are tried by simulation; among nearly equal plans the one with the fewest trees
    wins. The plan keeps the name of the policy that made it, so that a swap shows which policy took over. Planning
    takes as long as all policies together, seconds for 64 members.
    """

    #: Names of plug-ins that plan beside the project's own policies.
    also: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names: object = self.also
        if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(its, str) for its in names):
            raise PolicyError(f"auto: also {names!r} must be a list of policies' names", field="also", given=names)

    def plan(self, view: View) -> Plan:
        """Return the plan with the shortest round of those that the policies make."""
        return self._ranked(view, None)[0]

    def replan(self, view: View, last: Plan) -> Plan:
        """Return the plan with the shortest round, where policies may begin their searches from plan `last`."""
        return self.proposals(view, last)[0]

    def proposals(self, view: View, last: Plan) -> list[Plan]:
        """Return the plans with the shortest rounds, no two alike, at most PROPOSED."""
        return self._ranked(view, last)[:PROPOSED]

    def explain(self, view: View, plan: Plan) -> dict[str, Any]:
        """Return the seconds of a round by each policy, the shortest first, for policies far from the best too."""
        tried = _tried(view, _predicted(view, self._plans(view, None)))
        return {"round_s": {made.policy: seconds for seconds, made in sorted(tried, key=itemgetter(0))}}

    def _ranked(self, view: View, last: Plan | None) -> list[Plan]:
        """Return the plans that were tried, the best first, the others by their seconds."""
        tried = _tried(view, _screened(_predicted(view, self._plans(view, last))))
        near = min(seconds for seconds, _ in tried) * (1 + FEWER)
        tried.sort(key=lambda one: (len(one[1].trees) if one[0] <= near else float("inf"), one[0]))
        return [plan for _, plan in tried]

    def _plans(self, view: View, last: Plan | None) -> list[Plan]:
        """Return each policy's plan. Raises PolicyError with every policy's reason if none has a plan."""
        own = (name for name in policy_names() if is_own(REGISTRY[name]))
        others = [make_policy(name) for name in dict.fromkeys((*own, *self.also)) if name != self.name]
        plans, reasons = [], []
        for policy in others:
            if policy.measure is not None:
                continue  # its plans are not judged by the seconds of a round
            try:
                made = policy.plan(view) if last is None else policy.replan(view, last)
                if not is_own(policy):
                    check_plan(policy, view, made)
                plans.append(made)
            except PolicyError as error:
                reasons.append(str(error))
                if not is_own(policy):
                    _warn_once(policy.name, str(error))
            except Exception as error:
                if is_own(policy):
                    raise
                _warn_once(policy.name, f"{type(error).__name__}: {error}")
        if not plans:
            raise PolicyError(f"auto: no policy has a plan for this view: {'; '.join(reasons)}")
        return plans


@cache
def _warn_once(name: str, why: str) -> None:
    log.warning("auto leaves out the policy %s: %s", name, why)


def _predicted(view: View, plans: list[Plan]) -> list[Judged]:
    """Return the plans with their predicted seconds, the shortest first."""
    model = CostModel(view)
    return sorted(((model.predict(plan).seconds, plan) for plan in plans), key=itemgetter(0))


def _screened(predicted: list[Judged]) -> list[Judged]:
    """Return the plans that are worth a trial, no two alike."""
    kept: list[Judged] = []
    for seconds, plan in predicted:
        new = all(plan.shape() != other.shape() for _, other in kept)
        if new and seconds <= predicted[0][0] * SCREEN and len(kept) < TRIED:
            kept.append((seconds, plan))
    return kept


def _tried(view: View, predicted: list[Judged]) -> list[Judged]:
    """Return the plans with the seconds of their trials, or with the predictions where trials take too long."""
    return [(tried_s(plan, view, ROUNDS), plan) for _, plan in predicted] if affordable(view) else predicted
