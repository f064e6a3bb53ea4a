"""The plan in force and those on their way to follow it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from pathlib import Path

from testbed.controller.allreduce.epochs import Epochs
from testbed.controller.allreduce.plan_record import PlanRecord
from testbed.controller.allreduce.round_log import RoundSummary
from testbed.controller.allreduce.swaps import Swap
from testbed.controller.clocks import Clocks
from testbed.controller.contradiction import Contradiction
from testbed.plan import Plan, PlanError
from testbed.protocol import Rejoin

log = logging.getLogger(__name__)


class PlanHistory:
    """`plan` is in force, `pending` the swap that is under way, `swaps` all that came into force or still may.

    Times are Unix seconds. A plan that was dropped may come into force all the same, where members had agreed on it,
    and so may one that a controller before this one had them prepare for. Epochs and plans that were handed out are on
    record in the run's directory `out`.
    """

    def __init__(self, out: Path, clocks: Clocks) -> None:
        self.epochs = Epochs(out / "epochs.json")
        self.record = PlanRecord(out / "plans")
        self._clocks = clocks
        self.plan: Plan
        self.pending: Swap | None = None
        self.swaps: list[Swap] = []
        self._prepared: dict[int, Swap] = {}  # epochs newer than the one in force, the dropped ones too
        self._members: dict[int, frozenset[str]] = {}

    @property
    def in_force(self) -> Plan | None:
        """The plan in force; None before the first."""
        return getattr(self, "plan", None)

    @property
    def newest(self) -> int:
        """The newest epoch that a plan was numbered with."""
        return self.epochs.newest

    def next_epoch(self) -> int:
        """One that no plan has."""
        return self.epochs.next()

    def members(self, epoch: int) -> frozenset[str] | None:
        """Who takes part under the plan of an epoch, and is still there; None when there was no such plan."""
        return self._members.get(epoch)

    def begin(self, plan: Plan) -> None:
        """The members that are to come begin with this plan."""
        self.plan = plan
        self._know(plan)

    def prepare(self, plan: Plan, reason: str, after_round: int, joins: str) -> Swap:
        """The members are to prepare for another plan; with a member that `joins`, if it says so."""
        swap = Swap(plan, reason, self._clocks.unix(), after_round, joins=joins)
        self.pending = self._prepared[plan.epoch] = swap
        self.swaps.append(swap)
        self._know(plan)
        return swap

    def drop(self, swap: Swap) -> None:
        """Give up the swap under way."""
        self.swaps.remove(swap)
        self.pending = None

    def activated(self, rounds: Sequence[RoundSummary]) -> Swap | None:
        """The last of `rounds` (the newest complete ones) is over; the swap, if it was the first under another plan.

        Perhaps of a plan that was dropped when it was too late to take it back.
        """
        done = rounds[-1]
        swap = self._prepared.get(done.epoch) or self._of_the_controller_before(done)
        if swap is None:
            return None
        self.plan = swap.plan
        self._prepared = {epoch: other for epoch, other in self._prepared.items() if epoch > swap.plan.epoch}
        swap.activate(rounds)
        log.info("epoch %d in force since round %d, pause %s ms", swap.plan.epoch, done.number, swap.pause_ms)
        if swap is self.pending:
            self.pending = None
        elif swap not in self.swaps:
            self.swaps = sorted([*self.swaps, swap], key=lambda one: one.plan.epoch)
        return swap

    def resume(self, plan: Plan, why: str, after_round: int) -> None:
        """The plan is in force: those who are left had nothing to agree on."""
        now_s = self._clocks.unix()
        swap = Swap(plan, why, now_s, after_round, set(plan.members), now_s)
        self._prepared = {plan.epoch: swap}
        self.plan = plan
        self.swaps.append(swap)
        self._know(plan)
        log.info("epoch %d: %s", plan.epoch, why)

    @staticmethod
    def said(rejoin: Rejoin, members: Collection[str]) -> Plan:
        """The plan that one of the members goes by; Contradiction when there can be none such in this run."""
        who = f"{rejoin.member!r} does not say where it stands"
        if strangers := sorted({*rejoin.roster, *map(str, rejoin.plan.get("members", ()))} - {*members}):
            raise Contradiction(
                f"{who}: {strangers[0]!r:.80} is no member of this run",
                rule="unknown-member",
                member=rejoin.member,
                given=strangers[0],
            )
        try:
            plan = Plan.from_json(rejoin.plan)
        except PlanError as error:
            raise Contradiction(f"{who}: {error}", **{**error.details, "member": rejoin.member}) from error
        if missing := sorted(set(plan.members) - set(rejoin.roster)):
            raise Contradiction(
                f"{who}: its plan has {missing[0]!r}, and its roster has not",
                rule="roster",
                member=rejoin.member,
                given=missing[0],
            )
        if plan.epoch > rejoin.newest:
            raise Contradiction(
                f"{who}: its plan is of epoch {plan.epoch}, and the newest is {rejoin.newest}",
                rule="unknown-epoch",
                member=rejoin.member,
                epoch=plan.epoch,
            )
        return plan

    def recover(self, plan: Plan, begins: bool) -> None:
        """A member that was there before goes by this plan. Contradiction when there can be none such.

        `begins`: the controller was started anew, and knows of no other. What it handed out itself it takes from its
        own record, whatever the member says of it.
        """
        if plan.epoch > self.newest:
            raise Contradiction(
                f"epoch {plan.epoch} was never handed out; the newest is {self.newest}",
                rule="unknown-epoch",
                epoch=plan.epoch,
            )
        if (prepared := self._prepared.get(plan.epoch)) is not None:
            plan = prepared.plan
        elif not begins and plan.epoch > self.plan.epoch and not self.epochs.resumed:
            raise Contradiction(f"no plan of epoch {plan.epoch} was handed out", rule="unknown-epoch", epoch=plan.epoch)
        if begins or plan.epoch > self.plan.epoch:
            self.plan = plan
        self._members.setdefault(plan.epoch, frozenset(plan.members))

    def lose(self, gone: Collection[str]) -> None:
        """Rounds under any plan are complete without them."""
        self._members = {epoch: members.difference(gone) for epoch, members in self._members.items()}

    def _of_the_controller_before(self, done: RoundSummary) -> Swap | None:
        """The swap to the plan that a round went by, where that is newer than the one in force and not from here."""
        if not self.epochs.resumed or done.epoch <= self.plan.epoch:
            return None
        plan = self.record.find(done.epoch)
        if plan is None or set(plan.members) != set(self.plan.members):
            return None  # of one with a member more, that one tells when it comes back
        self._know(plan)
        return Swap(plan, "prepared under the controller before", done.began_s, done.number, set(plan.members))

    def _know(self, plan: Plan) -> None:
        self._members[plan.epoch] = frozenset(plan.members)
