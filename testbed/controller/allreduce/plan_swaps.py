"""Swaps to another plan: the members prepare the plan, report that they hold it, and follow it from some round on.

    Prepare to its members --all hold it--> Confirm --a round follows it--> in force
        `---- a member can't hold it, does not answer in time, reconnected, or is gone --> dropped

In an elastic run the current round may start again under the plan, as after a loss, if the old plan is much slower.
One swap is pending at a time. The members decide when the plan takes force: they agree on it in a global round, or
between two global rounds if they are in groups, without another message from the controller.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from functools import partial

from testbed.controller.knowledge.knowledge import Knowledge
from testbed.controller.model.actions import Action, Actions, After, Announce, Tell
from testbed.controller.model.membership import GroupState
from testbed.controller.model.plan_history import Swap
from testbed.controller.replanning.plan_requests import PlanRequest, PlanRequests
from testbed.plan import Plan
from testbed.protocol import Confirm, Held, Prepare, Stop
from testbed.schema import brief

log = logging.getLogger(__name__)

#: Members report within the round's timeout whether they hold a plan. After this much longer no answer will come.
HOLD_MARGIN_S = 10.0


class PlanSwaps:
    """Runs the swaps of a group's plans.

    Args:
        knowledge: The known network, by which a member that joins gets the nearest member's state.
        requests: The plan requests. Those that were deferred by a swap are made again after it.
    """

    def __init__(self, group: GroupState, knowledge: Knowledge, requests: PlanRequests) -> None:
        self._group = group
        self._knowledge = knowledge
        self._requests = requests

    def adopt(self, plan: Plan, reason: str, joins: str, restarts: bool) -> Generator[Action, None, Plan]:
        """Have the members swap to a plan. While the run waits for its members, the plan becomes the first one.

        Args:
            plan: The plan, of any epoch.
            reason: Why it was adopted.
            joins: The member that joins with the plan, or empty.
            restarts: Whether the members of an elastic run start their current round again under the plan.

        Returns:
            The plan with its epoch.
        """
        plans, running = self._group.plans, self._group.phase == "running"
        if running and restarts:
            plan = yield from self._group.restart(plan, reason)
            yield Announce()
            return plan
        plan = plan.with_epoch(plans.epochs.next() if running else plans.plan.epoch)
        if running:
            yield from self._prepare(plan, reason, joins)
        else:
            plans.begin(plan)
        yield Announce()
        return plan

    def _prepare(self, plan: Plan, reason: str, joins: str) -> Actions:
        group = self._group
        swap = group.plans.prepare(plan, reason, group.last_round or 0, joins)
        if joins:
            edges = self._knowledge.view(group.clocks.unix()).edges
            swap.holders.add(joins)
            rates = {source: edge.rate_bps for (source, to), edge in edges.items() if to == joins}
            yield from group.membership.prepare(plan, joins, group.jobs[joins], rates, group.clocks.monotonic())
        else:
            prepare = Prepare(plan.to_json())
            for member in plan.members:
                yield Tell(member, prepare)
        answered_s = max(job.round_timeout_s for job in group.jobs.values()) + HOLD_MARGIN_S
        yield After(answered_s, partial(self._drop_late, swap))

    def held(self, held: Held) -> Actions:
        """Handle a member's answer to a Prepare: the member holds the plan, or refuses it."""
        swap = self._group.plans.pending
        if swap is None or swap.plan.epoch != held.epoch or held.member not in swap.plan.members:
            return  # the swap was dropped meanwhile, or the plan does not include the member
        if held.refusal:
            yield from self._abandon(swap, f"{held.member} can't hold it: {held.refusal}")
        else:
            swap.hold(held.member, self._group.clocks.unix())
            if swap.held_s is not None and not swap.joins:
                for member in swap.plan.members:
                    yield Tell(member, Confirm(swap.plan.epoch))
        yield Announce()

    def round_over(self) -> Swap | None:
        """Return the swap whose plan the newest round was the first to follow, or None."""
        plans = self._group.plans
        before = plans.pending
        swap = plans.activated(self._group.rounds.complete)
        if swap is not None and swap is before:
            self._requests.restore_deferred()
        return swap

    def reconnected(self, member: str) -> Actions:
        """Drop the pending swap after a member's reconnection, unless the member has reported that it holds the plan.

        The Prepare or the answer may have been lost with the old connection.
        """
        swap = self._group.plans.pending
        if swap is not None and member not in swap.holders:
            yield from self._abandon(
                swap, f"the connection of {member} broke before it answered whether it holds the plan"
            )

    def drop_pending(self, why: str) -> Actions:
        """Drop the pending swap, if any. To be called before an abort, at which members discard the plan they hold."""
        if (swap := self._group.plans.pending) is not None:
            yield from self._drop(swap, why)

    def abandon_join(self, member: str, why: str) -> Actions:
        """Drop the pending swap by which a member was to join: the member is gone."""
        self._requests.remove(member)
        if (swap := self._group.plans.pending) is not None and swap.joins == member:
            yield from self._abandon(swap, f"{member}: {why}")

    def _abandon(self, swap: Swap, why: str) -> Actions:
        """Drop a swap. If a member was to join by it, reconfigure: the others may have agreed on it, and would wait."""
        yield from self._drop(swap, why)
        if swap.joins and self._group.membership.reconfiguration is None:
            yield from self._group.abort(f"{swap.joins} could not join: {why}")

    def _drop(self, swap: Swap, why: str) -> Actions:
        """Drop a plan that some member can't hold. The next Prepare or Abort makes the members drop it too."""
        log.warning("swap to the plan of epoch %d (%s) dropped: %s", swap.plan.epoch, swap.plan.policy, why)
        self._group.plans.drop(swap)
        if swap.joins:
            self._group.membership.leases.end(swap.joins)
            yield Tell(swap.joins, Stop(brief(f"this member could not join: {why}"), again=True))
        self._requests.add(PlanRequest("dropped", why=f"epoch {swap.plan.epoch} was dropped: {why}"))
        self._requests.restore_deferred()

    def _drop_late(self, swap: Swap) -> Actions:
        if swap is self._group.plans.pending and swap.held_s is None:
            missing = sorted(set(swap.plan.members) - swap.holders)
            yield from self._abandon(swap, f"{', '.join(missing)} did not say in time whether they hold the plan")
            yield Announce()
