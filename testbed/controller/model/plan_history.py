"""The plan in force, the pending plans and the swaps between them, recorded in the run's directory."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from testbed.controller.model.actions import Contradiction
from testbed.controller.model.clocks import Clocks
from testbed.controller.model.round_log import RoundSummary
from testbed.plan import Plan, PlanError
from testbed.protocol import Rejoin
from testbed.telemetry.store import write_json

log = logging.getLogger(__name__)


class Epochs:
    """Hands out epochs, and writes the newest to a file before any member hears of it.

    So a restarted controller knows which epochs a member can have heard of, and need not believe the member.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        #: True if the run began under a controller before this one.
        self.resumed = file.exists()
        self.newest: int = json.loads(file.read_text())["newest"] if self.resumed else 0

    def begin(self) -> None:
        """Record that the run begins."""
        self._keep()

    def next(self) -> int:
        """Return an epoch that no plan has yet."""
        self.newest += 1
        self._keep()
        return self.newest

    def _keep(self) -> None:
        write_json(self._file, {"newest": self.newest}, self._file.parent)


def store_plan(folder: Path, plan: Plan) -> None:
    """Write a plan to its own file in `folder`, named by the plan's epoch."""
    write_json(_plan_file(folder, plan.epoch), plan.to_json(), folder.parent)


def _plan_file(folder: Path, epoch: int) -> Path:
    return folder / f"{epoch:04d}.json"


#: Rounds that the first round of a swap is compared with. They are few, because a plan is often swapped after the
#: network became slow, at the earliest two rounds before, and without the swap the round would have been slow too.
COMPARED = 3


@dataclass(slots=True)
class Swap:
    """A swap to another plan, pending or in force. Times are Unix seconds; None before the event."""

    plan: Plan
    reason: str
    requested_s: float
    requested_round: int
    #: The members that hold the plan.
    holders: set[str] = field(default_factory=set)
    #: When the last member held the plan.
    held_s: float | None = None
    #: When the first round under the plan began.
    active_s: float | None = None
    active_round: int | None = None
    #: By how many milliseconds that round was longer than the rounds before it.
    pause_ms: float | None = None
    #: Updates lost and duplicated in the rounds from the request to the first round under the plan.
    lost_updates: int = 0
    duplicated_updates: int = 0
    #: The member that joins with the plan, or empty.
    joins: str = ""
    #: True if it came into force by a reconfiguration, so that its pause is that of a loss or of a slow round.
    resumed: bool = False

    def hold(self, member: str, now_s: float) -> None:
        """Record that a member holds the plan."""
        self.holders.add(member)
        if self.held_s is None and self.holders == set(self.plan.members):
            self.held_s = now_s

    def activate(self, rounds: Sequence[RoundSummary]) -> None:
        """Record the first round under the plan, the last of `rounds` (the newest complete ones, in order)."""
        first = rounds[-1]
        self.active_s = first.began_s
        self.active_round = first.number
        self.pause_ms = pause_ms([done.finished_s for done in rounds], len(rounds) - 1)
        since = [done for done in rounds if done.number >= self.requested_round]
        self.lost_updates = sum(done.lost for done in since)
        self.duplicated_updates = sum(done.duplicated for done in since)

    def to_json(self) -> dict[str, Any]:
        """Return the swap in the form of the run's summary, with a few more fields."""
        return {
            "kind": "plan",
            "epoch": self.plan.epoch,
            "policy": self.plan.policy,
            "reason": self.reason,
            "requested_s": self.requested_s,
            "held_s": self.held_s,
            "active_s": self.active_s,
            "active_round": self.active_round,
            "pause_ms": self.pause_ms,
            "lost_updates": self.lost_updates,
            "duplicated_updates": self.duplicated_updates,
        }


def pause_ms(finished_s: Sequence[float], first: int, last: int | None = None) -> float | None:
    """Return by how many milliseconds a swap of a plan or a network made a round longer, at least 0.

    A round's whole time runs from the end of the round before to its own end, since the swap costs time inside a round:
    new connections start slowly. The longest affected round is compared with the median of the COMPARED rounds before
    the swap, or with the median of the COMPARED rounds after it if that is longer: a plan or a network that stays
    slower is not a pause.

    Args:
        finished_s: When the last member finished each round, in Unix seconds.
        first: The index of the first affected round.
        last: The index of the last affected round; `first` by default.

    Returns:
        Milliseconds, or None with fewer than COMPARED rounds before the swap.
    """
    wholes = [after - before for before, after in pairwise(finished_s)]  # the first round has no whole time
    end = first if last is None else last
    felt = wholes[max(first - 1, 0) : end]
    before = wholes[max(first - 1 - COMPARED, 0) : max(first - 1, 0)]
    if not felt or len(before) < COMPARED:
        return None
    after = wholes[end : end + COMPARED]
    usual = max(median(before), median(after) if len(after) == COMPARED else 0.0)
    return max(0.0, max(felt) - usual) * 1e3


#: The newest swaps that are kept with their plans. A plan takes some 10 KB, and a run of weeks has thousands of swaps.
WHOLE_SWAPS = 100


class PlanHistory:
    """The plan in force, the pending swap, and all swaps. Times are Unix seconds.

    A dropped plan can still come into force if the members had agreed on it, and so can a plan that members prepared
    under the controller before this one. All epochs and plans are recorded in the run's directory `out`, each plan in a
    file named by its epoch, before any member hears of it.
    """

    def __init__(self, out: Path, clocks: Clocks) -> None:
        self.epochs = Epochs(out / "epochs.json")
        self._folder = out / "plans"
        self._clocks = clocks
        self.plan: Plan
        #: The swap under way.
        self.pending: Swap | None = None
        #: The newest swaps that came into force or still may.
        self.swaps: list[Swap] = []
        self._earlier: list[dict[str, Any]] = []
        self._prepared: dict[int, Swap] = {}  # epochs newer than the one in force, dropped ones included
        self._members: dict[int, frozenset[str]] = {}

    @property
    def in_force(self) -> Plan | None:
        """The plan in force; None before the first."""
        return getattr(self, "plan", None)

    def swaps_to_json(self) -> list[dict[str, Any]]:
        """Return all swaps that came into force or still may, in the order of their epochs."""
        return [*self._earlier, *(swap.to_json() for swap in self.swaps)]

    def members(self, epoch: int) -> frozenset[str] | None:
        """Return the members of an epoch's plan that are still present.

        Returns:
            The members, or None if there was no such plan, or it is older than the plan before the one in force.
        """
        return self._members.get(epoch)

    def begin(self, plan: Plan) -> None:
        """Put the first plan in force, with which the members begin."""
        self._record(plan)
        self.plan = plan

    def prepare(self, plan: Plan, reason: str, after_round: int, joins: str) -> Swap:
        """Begin a swap to another plan, with which the member `joins` joins unless that is empty."""
        self._record(plan)
        swap = Swap(plan, reason, self._clocks.unix(), after_round, joins=joins)
        self.pending = self._prepared[plan.epoch] = swap
        self._add(swap)
        return swap

    def drop(self, swap: Swap) -> None:
        """Give up the pending swap."""
        self.swaps.remove(swap)
        self.pending = None

    def activated(self, rounds: Sequence[RoundSummary]) -> Swap | None:
        """Put in force the plan that the last of `rounds` used, if that round is the first under it.

        Args:
            rounds: The newest complete rounds, in order.

        Returns:
            The swap if that round was the first under another plan. The plan may be one that was dropped too late.
        """
        done = rounds[-1]
        swap = self._prepared.get(done.epoch) or self._prepared_before_restart(done)
        if swap is None:
            return None
        self._put_in_force(swap.plan)
        self._prepared = {epoch: other for epoch, other in self._prepared.items() if epoch > swap.plan.epoch}
        swap.activate(rounds)
        log.info(
            "plan of epoch %d (%s) in force since round %d, pause %s ms",
            swap.plan.epoch,
            swap.plan.policy,
            done.number,
            swap.pause_ms,
        )
        if swap is self.pending:
            self.pending = None
        elif swap not in self.swaps:
            self.swaps = sorted([*self.swaps, swap], key=lambda one: one.plan.epoch)
        return swap

    def resume(self, plan: Plan, why: str, after_round: int) -> None:
        """Put the plan of a reconfiguration in force at once, without the members' agreement."""
        self._record(plan)
        now_s = self._clocks.unix()
        swap = Swap(plan, why, now_s, after_round, set(plan.members), now_s, resumed=True)
        self._prepared = {plan.epoch: swap}
        self._put_in_force(plan)
        self._add(swap)
        log.info("plan of epoch %d (%s) in force after a reconfiguration: %s", plan.epoch, plan.policy, why)

    @staticmethod
    def reported_plan(rejoin: Rejoin, members: Collection[str]) -> Plan:
        """Return the plan that a reconnected member says it follows, after checking it.

        Raises:
            Contradiction: There can be no such plan in this run.
        """
        who = f"the state that {rejoin.member!r} reports after its reconnection is impossible"
        if strangers := sorted({*rejoin.roster, *map(str, rejoin.plan.get("members", ()))} - {*members}):
            text = f"{who}: {strangers[0]!r:.80} is not a member of this run"
            raise Contradiction(
                text, rule="unknown-member", member=rejoin.member, round=rejoin.round, given=strangers[0]
            )
        try:
            plan = Plan.from_json(rejoin.plan)
        except PlanError as error:
            raise Contradiction(f"{who}: {error}", **{**error.details, "member": rejoin.member}) from error
        if missing := sorted(set(plan.members) - set(rejoin.roster)):
            text = f"{who}: its plan includes {missing[0]!r}, and its roster has no address of that member"
            raise Contradiction(text, rule="roster", member=rejoin.member, round=rejoin.round, given=missing[0])
        if plan.epoch > rejoin.newest:
            text = f"{who}: its plan has epoch {plan.epoch}, and the newest epoch that it knows of is {rejoin.newest}"
            raise Contradiction(text, rule="unknown-epoch", member=rejoin.member, round=rejoin.round, epoch=plan.epoch)
        return plan

    def recover(self, plan: Plan, begins: bool) -> None:
        """Put a reconnected member's plan in force if it is newer than the plan in force.

        If this controller prepared the plan of that epoch itself, its own record of the plan is used, not the member's.

        Args:
            plan: The plan that the member follows.
            begins: True if this controller was restarted, and knows of no plan in force yet.

        Raises:
            Contradiction: No controller of this run can have made the plan.
        """
        if plan.epoch > self.epochs.newest:
            text = f"the plan's epoch {plan.epoch} was never handed out; the newest is {self.epochs.newest}"
            raise Contradiction(text, rule="unknown-epoch", epoch=plan.epoch)
        if (prepared := self._prepared.get(plan.epoch)) is not None:
            plan = prepared.plan
        elif not begins and plan.epoch > self.plan.epoch and not self.epochs.resumed:
            raise Contradiction(f"no plan of epoch {plan.epoch} was handed out", rule="unknown-epoch", epoch=plan.epoch)
        if begins or plan.epoch > self.plan.epoch:
            self.plan = plan
        self._members.setdefault(plan.epoch, frozenset(plan.members))

    def remove_members(self, gone: Collection[str]) -> None:
        """Stop waiting for these members' reports, under any plan."""
        self._members = {epoch: members.difference(gone) for epoch, members in self._members.items()}

    def _prepared_before_restart(self, done: RoundSummary) -> Swap | None:
        """Return the swap to a round's plan if the controller before this one prepared it, else None."""
        if not self.epochs.resumed or done.epoch <= self.plan.epoch:
            return None
        file = _plan_file(self._folder, done.epoch)
        plan = Plan.from_json(json.loads(file.read_text())) if file.exists() else None
        if plan is None or set(plan.members) != set(self.plan.members):
            return None  # if it takes in a member, that member reports it when it reconnects
        self._members[plan.epoch] = frozenset(plan.members)
        return Swap(plan, "prepared under the previous controller", done.began_s, done.number, set(plan.members))

    def _add(self, swap: Swap) -> None:
        """Add the newest swap. The oldest ones are in force, or were, so that their records no longer change."""
        self.swaps.append(swap)
        self._earlier += [one.to_json() for one in self.swaps[:-WHOLE_SWAPS]]
        del self.swaps[:-WHOLE_SWAPS]

    def _put_in_force(self, plan: Plan) -> None:
        """Put a plan in force. Reports of incomplete rounds may name the plan before it, and no older one."""
        self._members = {epoch: members for epoch, members in self._members.items() if epoch >= self.plan.epoch}
        self.plan = plan

    def _record(self, plan: Plan) -> None:
        store_plan(self._folder, plan)
        self._members[plan.epoch] = frozenset(plan.members)
