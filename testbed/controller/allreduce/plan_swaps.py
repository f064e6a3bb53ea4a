"""Plans on their way into force: members prepare for one, say that they hold it, and go by it from a round on.

    Prepare to all --all hold it--> Confirm --a round goes by it--> in force
        `---- one can't hold it, says nothing in time, was away, or is gone --> dropped

There is one at a time. What is in force is for the members to say: they agreed on it, in a round among all, or where
they are in groups between two of those, without another word from here.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from functools import partial

from testbed.controller.model.actions import Actions, After, Announce, Tell, TellAll
from testbed.controller.model.plan_history import Swap
from testbed.controller.replanning.group_state import GroupState
from testbed.controller.replanning.plan_requests import PlanRequest, PlanRequests
from testbed.plan import Plan
from testbed.protocol import Confirm, Held, Prepare, Stop
from testbed.schema import brief

log = logging.getLogger(__name__)

#: Members say within the round's timeout whether they hold a plan; one that says nothing for so much longer never will.
HOLD_MARGIN_S = 10.0


class PlanSwaps:
    """Has the group's members go over to other plans. What waits for that is asked for again once it is over."""

    def __init__(self, group: GroupState, requests: PlanRequests) -> None:
        self._group = group
        self._requests = requests

    def prepare(self, plan: Plan, reason: str, joins: str) -> Actions:
        """Have the members hold a plan, with which a member may come that `joins`."""
        group = self._group
        swap = group.plans.prepare(plan, reason, group.last_round or 0, joins)
        if joins:
            edges = group.knowledge.view(self._group.clocks.unix()).edges
            swap.holders.add(joins)
            rates = {source: edge.rate_bps for (source, to), edge in edges.items() if to == joins}
            yield from group.membership.prepare(plan, joins, group.jobs[joins], rates, self._group.clocks.monotonic())
        else:
            yield TellAll(Prepare(plan.to_json()))
        answered_s = max(job.round_timeout_s for job in group.jobs.values()) + HOLD_MARGIN_S
        yield After(answered_s, partial(self._drop_late, swap))

    def held(self, held: Held) -> Actions:
        """A member holds a plan, or never will."""
        swap = self._group.plans.pending
        if swap is None or swap.plan.epoch != held.epoch:
            return  # dropped meanwhile
        if held.refusal:
            yield from self._give_up(swap, f"{held.member} can't hold it: {held.refusal}")
        else:
            swap.hold(held.member, self._group.clocks.unix())
            if swap.held_s is not None and not swap.joins:
                yield TellAll(Confirm(swap.plan.epoch))
        yield Announce()

    def round_over(self) -> Swap | None:
        """The swap whose plan the newest round was the first to go by; None where it went by the one in force."""
        plans = self._group.plans
        before = plans.pending
        swap = plans.activated(self._group.rounds.complete)
        if swap is not None and swap is before:
            self._requests.ask_deferred()
        return swap

    def came_back(self, member: str) -> Actions:
        """A member's line to us broke and was made anew. What was on it is lost: it may never have heard of a plan, or
        we never that it holds it."""
        swap = self._group.plans.pending
        if swap is not None and member not in swap.holders:
            yield from self._give_up(swap, f"{member}'s line broke before it said whether it holds it")

    def lose(self, gone: Collection[str]) -> Actions:
        """Members are gone, and with them what is under way."""
        if (swap := self._group.plans.pending) is not None:
            yield from self._drop(swap, "; ".join(f"{member} is gone" for member in gone))

    def not_come(self, member: str, why: str) -> Actions:
        """A member was to come, and is gone."""
        self._requests.forget(member)
        if (swap := self._group.plans.pending) is not None and swap.joins == member:
            yield from self._give_up(swap, f"{member}: {why}")

    def _give_up(self, swap: Swap, why: str) -> Actions:
        """Drop a plan; one with a member more may be agreed on already, by members that would wait for that one."""
        yield from self._drop(swap, why)
        if swap.joins and self._group.membership.reconfiguration is None:
            yield from self._group.abort(f"{swap.joins} does not come: {why}")

    def _drop(self, swap: Swap, why: str) -> Actions:
        """Give up a plan that can't be held everywhere. The next Prepare takes it back, or an Abort."""
        log.warning("epoch %d dropped: %s", swap.plan.epoch, why)
        self._group.plans.drop(swap)
        if swap.joins:
            self._group.membership.done(swap.joins)
            yield Tell(swap.joins, Stop(brief(f"could not be let in: {why}"), again=True))
        self._requests.ask(PlanRequest("dropped", why=f"epoch {swap.plan.epoch} was dropped: {why}"))
        self._requests.ask_deferred()

    def _drop_late(self, swap: Swap) -> Actions:
        if swap is self._group.plans.pending and swap.held_s is None:
            missing = sorted(set(swap.plan.members) - swap.holders)
            yield from self._give_up(swap, f"{', '.join(missing)} did not say in time whether they hold it")
            yield Announce()
