"""The way out of an abort: once those who are left have said what they hold, a plan for them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from testbed.controller.model.actions import Actions, Announce, Background, Fail
from testbed.controller.model.contradiction import Contradiction
from testbed.controller.model.membership import Reconfiguration
from testbed.controller.replanning.group_state import GroupState
from testbed.controller.replanning.planner import Planner
from testbed.plan import Plan
from testbed.planning import PolicyError, View, make_policy
from testbed.protocol import Holding

log = logging.getLogger(__name__)

#: What plans for those who are left when the run's own policy has none: it needs nothing but that they reach another.
LAST_RESORT = "mst"


class Recovery:
    """Has those who are left of a group go on; see `GroupState.abort` for what went before."""

    def __init__(self, group: GroupState, planner: Planner, lose: Callable[[Mapping[str, str]], Actions]) -> None:
        """`lose`: have the others go on without these members, each with why."""
        self._group = group
        self._planner = planner
        self._lose = lose

    def holding(self, holding: Holding) -> Actions:
        """A member says what it holds; Contradiction when it can't. Once all have, they need a plan, but for those that
        can't be right."""
        membership, newest = self._group.membership, self._group.rounds.newest
        if holding.round < newest:
            raise Contradiction(
                f"it is in round {holding.round}, and round {newest} was finished with its update",
                rule="round-over",
                member=holding.member,
                round=holding.round,
            )
        if not membership.holding(holding) or (change := membership.reconfiguration) is None:
            return
        if odd := disagreeing(change.holdings.values()):
            yield from self._lose(odd)
            return
        work = partial(self._plan_for, self._group.view(self._group.clocks.unix()), change.epoch)
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


def disagreeing(holdings: Iterable[Holding]) -> dict[str, str]:
    """The members that hold a part of a round which is not as long as for most who hold one, each with why: all of them
    where there is no most."""
    parts = [holding for holding in holdings if not holding.over and holding.elements]
    said = Counter((holding.round, holding.elements) for holding in parts)
    found = {}
    for holding in parts:
        own = holding.round, holding.elements
        others = [count for other, count in said.items() if other != own and other[0] == holding.round]
        if max(others, default=0) >= said[own]:
            found[holding.member] = f"it has round {holding.round} of {holding.elements} elements, and others have not"
    return found
