"""Recovery after an abort: a plan for the remaining members, once they have reported what they hold."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from testbed.controller.model.actions import Actions, Announce, Background, Contradiction, Fail
from testbed.controller.model.membership import GroupState, Reconfiguration
from testbed.controller.replanning.plan_maker import PlanMaker
from testbed.controller.replanning.planner import Planner
from testbed.plan import Plan
from testbed.planning import PolicyError, View, make_policy
from testbed.protocol import Holding

log = logging.getLogger(__name__)

#: The policy for the remaining members if the run's own finds no plan. It needs only that they reach each other.
LAST_RESORT = "mst"


class Recovery:
    """Runs the recovery of a group after `GroupState.abort`, up to the plan with which its members go on."""

    def __init__(
        self,
        group: GroupState,
        maker: PlanMaker,
        planner: Planner,
        remove_members: Callable[[Mapping[str, str]], Actions],
    ) -> None:
        self._group = group
        self._maker = maker
        self._planner = planner
        self._remove_members = remove_members

    def holding(self, holding: Holding) -> Actions:
        """Record what a member holds. After the last report, remove members that disagree, or else make a new plan.

        Raises:
            Contradiction: The member can't be in that round.
        """
        membership, newest = self._group.membership, self._group.rounds.newest
        if holding.round < newest:
            text = f"it reports that it is in round {holding.round}, and it contributed to round {newest} already"
            raise Contradiction(
                text, rule="round-over", member=holding.member, round=holding.round, epoch=holding.epoch
            )
        if not membership.add_holding(holding) or (change := membership.reconfiguration) is None:
            return
        if odd := disagreeing(change.holdings.values()):
            yield from self._remove_members(odd)
            return
        if change.plan is not None:
            yield from self._reconfigure(change, membership.present, change.plan)
            return
        now = self._group.clocks.unix()
        work = partial(self._plan_for, self._maker.view(now), self._maker.view(now, whole=True), change.epoch)
        yield Background(work, partial(self._reconfigure, change, membership.present))

    def _plan_for(self, view: View, whole: View, epoch: int) -> Plan | PolicyError:
        """Return a plan for a view's members, by LAST_RESORT if the run's policy has none, or LAST_RESORT's error.

        If LAST_RESORT has none either, it is tried with the `whole` view: members that could not reach each other when
        one of them joined may do so now.
        """
        policy, last_resort = self._planner.policy, make_policy(LAST_RESORT, {})
        for tried, known in ((policy, view), (last_resort, view), (last_resort, whole)):
            try:
                return self._maker.plan(tried, known).with_epoch(epoch)
            except PolicyError as error:
                log.warning("policy %s finds no plan for %s: %s", tried.name, known.names, error)
                reason = error
        return reason

    def _reconfigure(self, change: Reconfiguration, members: frozenset[str], plan: Plan | PolicyError) -> Actions:
        membership = self._group.membership
        if change is not membership.reconfiguration or members != membership.present:
            return  # another member was lost meanwhile
        if isinstance(plan, PolicyError):
            yield Fail(f"no plan connects the remaining members: {plan}")
            return
        yield from membership.reconfigure(plan)
        self._group.plans.resume(plan, change.why, self._group.last_round or 0)
        self._planner.reconsider()
        yield Announce()


def disagreeing(holdings: Iterable[Holding]) -> dict[str, str]:
    """Return the members whose part of a round has another length than most members', each with the reason.

    If no length is the most frequent one, all of that round's members are returned.
    """
    parts = [holding for holding in holdings if not holding.over and holding.elements]
    said = Counter((holding.round, holding.elements) for holding in parts)
    found = {}
    for holding in parts:
        own = holding.round, holding.elements
        others = [count for other, count in said.items() if other != own and other[0] == holding.round]
        if max(others, default=0) >= said[own]:
            found[holding.member] = (
                f"it holds round {holding.round} of {holding.elements} elements, and other members hold another length"
            )
    return found
