"""The plan in force, those on their way to follow it, and the swaps between them, on record in the run's directory."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from testbed.controller.model.clocks import Clocks
from testbed.controller.model.contradiction import Contradiction
from testbed.controller.model.round_log import RoundSummary
from testbed.plan import Plan, PlanError
from testbed.protocol import Rejoin
from testbed.telemetry.store import write_json


class Epochs:
    """Hands out epochs, and keeps the `newest` in a file before anybody is told of it.

    So a controller that is started anew knows which ones a member can have heard of, and takes nobody's word for it.
    `resumed`: the run had begun under a controller before this one.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.resumed = file.exists()
        self.newest: int = json.loads(file.read_text())["newest"] if self.resumed else 0

    def begin(self) -> None:
        """The members are there: the run begins."""
        self._keep()

    def next(self) -> int:
        """One that no plan has."""
        self.newest += 1
        self._keep()
        return self.newest

    def _keep(self) -> None:
        write_json(self._file, {"newest": self.newest})


class PlanRecord:
    """A file for each plan in `folder`, named by its epoch: written before any member is told of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def store(self, plan: Plan) -> None:
        """Keep a plan."""
        write_json(self._file(plan.epoch), plan.to_json())

    def find(self, epoch: int) -> Plan | None:
        """The plan of an epoch; None where none was handed out."""
        file = self._file(epoch)
        return Plan.from_json(json.loads(file.read_text())) if file.exists() else None

    def _file(self, epoch: int) -> Path:
        return self._folder / f"{epoch:04d}.json"


#: Rounds that a swap's first one is compared with. Few: a plan is often swapped because the network became slow, at
#: the earliest two rounds before, and slow is what the round would have been without the swap.
COMPARED = 3


@dataclass(slots=True)
class Swap:
    """A plan on its way into force, or there. Times are Unix seconds; None where it has not come to that.

    `active_s`: when the first round under the plan began. `pause_ms`: by how much that round was longer than those
    before it. `lost_updates` and `duplicated_updates`: those of the rounds from the request to the first under it.
    `joins` names a member that comes with the plan.
    """

    plan: Plan
    reason: str
    requested_s: float
    requested_round: int
    holders: set[str] = field(default_factory=set)
    held_s: float | None = None
    active_s: float | None = None
    active_round: int | None = None
    pause_ms: float | None = None
    lost_updates: int = 0
    duplicated_updates: int = 0
    joins: str = ""

    def hold(self, member: str, now_s: float) -> None:
        """`member` holds the plan."""
        self.holders.add(member)
        if self.held_s is None and self.holders == set(self.plan.members):
            self.held_s = now_s

    def activate(self, rounds: Sequence[RoundSummary]) -> None:
        """The last of `rounds` (the newest complete ones, in order) is the first under the plan."""
        first = rounds[-1]
        self.active_s = first.began_s
        self.active_round = first.number
        self.pause_ms = pause_ms([done.finished_s for done in rounds], len(rounds) - 1)
        since = [done for done in rounds if done.number >= self.requested_round]
        self.lost_updates = sum(done.lost for done in since)
        self.duplicated_updates = sum(done.duplicated for done in since)

    def to_json(self) -> dict[str, Any]:
        """As the run's summary has it, and a little more."""
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
    """Milliseconds by which a swap made a round longer, at least 0; the same for swaps of plans and of networks.

    `finished_s` has the time at which the last member finished each round. A round's whole time runs from the end of
    the one before to its own, since a swap is paid for inside a round: connections are fresh and begin slowly. The
    longest of the rounds that felt the swap, `first` to `last` (indices; by default only the first), is compared with
    the median of the COMPARED before; None when there are not so many. Where as many came after, with theirs if they
    took longer: a plan or a network that is slower for good is no pause.
    """
    wholes = [after - before for before, after in pairwise(finished_s)]  # the first round has none
    end = first if last is None else last
    felt = wholes[max(first - 1, 0) : end]
    before = wholes[max(first - 1 - COMPARED, 0) : max(first - 1, 0)]
    if not felt or len(before) < COMPARED:
        return None
    after = wholes[end : end + COMPARED]
    usual = max(median(before), median(after) if len(after) == COMPARED else 0.0)
    return max(0.0, max(felt) - usual) * 1e3


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
