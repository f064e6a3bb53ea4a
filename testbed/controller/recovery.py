"""The way out of an abort: once those who are left have said what they hold, a plan for them."""

from __future__ import annotations

import logging
import time
from functools import partial

from testbed.controller.actions import Actions, Announce, Background, Fail
from testbed.controller.group_state import GroupState
from testbed.controller.membership import Reconfiguration
from testbed.controller.planner import Planner
from testbed.plan import Plan
from testbed.planning import PolicyError, View, make_policy

log = logging.getLogger(__name__)

#: What plans for those who are left when the run's own policy has none: it needs nothing but that they reach another.
LAST_RESORT = "mst"


class Recovery:
    """Has those who are left of a group go on; see `GroupState.abort` for what went before."""

    def __init__(self, group: GroupState, planner: Planner) -> None:
        self._group = group
        self._planner = planner

    def begin(self) -> Actions:
        """All who are left have said what they hold: they need a plan."""
        membership = self._group.membership
        if (change := membership.reconfiguration) is not None:
            work = partial(self._plan_for, self._group.view(time.time()), change.epoch)
            yield Background(work, partial(self._go_on, change, membership.present))

    def _plan_for(self, view: View, epoch: int) -> Plan | PolicyError:
        """A plan for a view's members, by another policy where the run's has none; the error when they can't reach
        each other."""
        policy = self._planner.policy
        try:
            plan = self._group.plan(policy, view)
        except PolicyError as error:
            log.warning("no plan of %s for %s: %s", policy.name, sorted(view.names), error)
            try:
                plan = self._group.plan(make_policy(LAST_RESORT, {}), view)
            except PolicyError as unreachable:
                return unreachable
        return plan.with_epoch(epoch)

    def _go_on(self, change: Reconfiguration, members: frozenset[str], plan: Plan | PolicyError) -> Actions:
        membership = self._group.membership
        if change is not membership.reconfiguration or members != membership.present:
            return  # another was lost meanwhile
        if isinstance(plan, PolicyError):
            yield Fail(f"no plan for those who are left: {plan}")
            return
        yield from membership.reconfigure(plan)
        self._planner.recovered(plan, change.why)
        yield Announce()
