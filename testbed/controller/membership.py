"""Who takes part, and how that changes while training goes on.

    a member is gone      Halt to all others --all Holdings are in--> a plan without it --> Resume
    a member comes        a plan with it, prepared and agreed on as any other; it begins from a neighbour's state

Another member that goes meanwhile begins the first of these anew, under a newer epoch.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from testbed.controller.leases import Leases
from testbed.controller.spec import Elasticity
from testbed.plan import Plan
from testbed.protocol import Halt, Hello, Holding, Job, Lost, Message, Prepare, Resume, Stop, Welcome

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MembershipEvent:
    """A member left or came: when (Unix time), after which round, and why; `epoch` is the first plan after it."""

    kind: str
    member: str
    at_s: float
    round: int | None
    epoch: int
    why: str


@dataclass(slots=True)
class Change:
    """A plan for those who are left, on its way: what they hold, as far as they have said so."""

    epoch: int
    why: str
    holdings: dict[str, Holding] = field(default_factory=dict)


class Host(Protocol):
    """What the controller does for this."""

    def send(self, member: str, message: Message) -> None:
        """Send to a member that is there."""

    def fail(self, reason: str) -> None:
        """The run can't go on."""

    def losing(self, gone: Mapping[str, str]) -> None:
        """Members are gone: plans under way are given up, and nothing waits for them."""


class Plans(Protocol):
    """Who makes plans."""

    def next_epoch(self) -> int:
        """One that no plan has."""

    def last_round(self) -> int | None:
        """The newest that all have reported."""

    async def plan_for(self, members: frozenset[str], epoch: int) -> Plan:
        """A plan for these; PolicyError when there is none."""

    def resumed(self, plan: Plan, why: str) -> None:
        """The plan is in force."""

    def not_come(self, member: str, why: str) -> None:
        """It was to come with a plan that is on its way, and is gone."""


class Membership:
    """The members that are `present`, their leases, and what happens when one is gone. For one event loop."""

    def __init__(
        self, members: Iterable[str], token: str, elastic: Elasticity | None, host: Host, plans: Plans
    ) -> None:
        self.present = frozenset(members)
        self.roster: dict[str, tuple[str, int]] = {}
        self.passages: list[MembershipEvent] = []
        # A controller that is started anew must say the same.
        self._secret = hmac.digest(token.encode(), b"between members", "sha256").hex()
        self._quorum = elastic.quorum if elastic else len(self.present)
        self._lease_s = elastic.lease_s if elastic else 0.0
        self._host = host
        self._plans = plans
        self._leases = Leases(self._lease_s)
        self._change: Change | None = None
        self._away: set[str] = set()
        self._halted = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def changing(self) -> bool:
        """Whether a plan for those who are left is on its way."""
        return self._change is not None

    def begin(self) -> None:
        """All present are there: from now on they have leases, if the run is elastic."""
        if not self._lease_s:
            return
        self._leases.begin(self.present, time.monotonic())
        self._start(self._look())

    def end(self) -> None:
        """The run is over: nobody is looked after any more."""
        self._change = None
        for task in self._tasks:
            task.cancel()

    # What members say

    def renewed(self, member: str) -> None:
        self._leases.renew(member, time.monotonic())

    def advanced(self, member: str) -> None:
        """It finished a round."""
        self._leases.advance(member)

    def done(self, member: str) -> None:
        """It said goodbye: its connections may end."""
        self._leases.end(member)

    def hung_up(self, member: str) -> None:
        self._leases.hang_up(member)
        self._lose_gone()

    def lost(self, lost: Lost) -> None:
        log.info("%s lost %s: %s", lost.member, lost.peer, lost.why)
        self._leases.lose(lost.member, lost.peer, lost.why, lost.broken, time.monotonic())
        self._lose_gone()

    def holding(self, holding: Holding) -> None:
        change = self._change
        if change is None or holding.epoch != change.epoch or holding.member not in self.present:
            return
        change.holdings[holding.member] = holding
        if change.holdings.keys() == self.present:
            self._start(self._resume(change))

    def came_back(self, hello: Hello) -> None:
        """A member that never left found the controller again. It goes unless the others went on without it."""
        if hello.member not in self.present:
            self._host.send(hello.member, Stop("the others went on without this member", again=True))
            return
        self._away.discard(hello.member)
        self._halted |= bool(hello.standing["halted"])
        self.renewed(hello.member)
        if self._change is not None:
            self._host.send(hello.member, Halt(self._change.epoch, self._change.why))
        elif self._halted and not self._away:
            self._halt(self._plans.next_epoch(), "the controller was away when a member was lost")

    def recover(self, plan: Plan, roster: Mapping[str, tuple[str, int]]) -> None:
        """The controller was started anew, and hears from a member of whom there are."""
        self.present = frozenset(plan.members)
        self._away = set(self.present)
        self.roster = dict(roster)

    def welcome(self, member: str, job: Job, plan: Plan, source: str = "") -> Welcome:
        """What a member is told that is let in; who comes while the others train, and its `source` of the state."""
        lease_s = self._lease_s
        return Welcome(asdict(job), self._roster_of(plan), plan.to_json(), self._secret, lease_s, source)

    def prepare(self, plan: Plan, joins: str, job: Job, rates: Mapping[str, float]) -> None:
        """Have the members hold a plan with which one `joins`, and let it begin from a neighbour's state.

        `rates` to the new member say who is its nearest.
        """
        source = max(sorted(self.present), key=lambda member: rates.get(member, 0.0))
        self._leases.begin([joins], time.monotonic())
        self._host.send(joins, self.welcome(joins, job, plan, source))
        for member in sorted(self.present):
            self._host.send(member, Prepare(plan.to_json(), self._roster_of(plan), source))

    # Changes

    def lose(self, gone: Mapping[str, str]) -> None:
        """These members are gone; the others go on, if they are enough."""
        for member in gone.keys() - self.present:
            self._leases.end(member)
            self._plans.not_come(member, gone[member])
        gone = {member: why for member, why in gone.items() if member in self.present}
        if not gone:
            return
        self.present -= gone.keys()
        reason = "; ".join(f"{member} is gone: {why}" for member, why in gone.items())
        for member, why in gone.items():
            log.warning("%s is gone: %s", member, why)
            self._leases.end(member)
            self._away.discard(member)
            self._host.send(member, Stop(f"the others go on without this member: {why}", again=True))
        self._host.losing(gone)
        epoch, now, after = self._plans.next_epoch(), time.time(), self._plans.last_round()
        self.passages += [MembershipEvent("left", member, now, after, epoch, why) for member, why in gone.items()]
        if len(self.present) < self._quorum:
            self._host.fail(f"{reason}; {len(self.present)} members are left, and the quorum is {self._quorum}")
            return
        self._halt(epoch, reason)

    def regroup(self, why: str) -> None:
        """Have those who are present go on without a member that was to come: they may have agreed on its plan."""
        if self._change is None:
            self._halt(self._plans.next_epoch(), why)

    def admit(self, member: str, plan: Plan) -> None:
        """A member takes part, from the first round under `plan`."""
        self.present |= {member}
        self.passages.append(MembershipEvent("came", member, time.time(), self._plans.last_round(), plan.epoch, ""))

    def _halt(self, epoch: int, why: str) -> None:
        change = self._change = Change(epoch, why)
        self._halted = False
        self._leases.begin(self.present, time.monotonic())
        for member in sorted(self.present):
            self._host.send(member, Halt(change.epoch, why))
        asyncio.get_running_loop().call_later(self._lease_s, self._lose_silent, change)

    def _lose_silent(self, change: Change) -> None:
        if change is self._change and (silent := self.present - change.holdings.keys()):
            self.lose(dict.fromkeys(silent, "it did not say what it holds"))

    async def _resume(self, change: Change) -> None:
        members = self.present
        plan = await self._plans.plan_for(members, change.epoch)
        if change is not self._change or members != self.present:
            return
        self._change = None
        holdings = tuple(change.holdings[member] for member in plan.members)
        for member in plan.members:
            self._host.send(member, Resume(plan.to_json(), self._roster_of(plan), holdings))
        self._plans.resumed(plan, change.why)

    def _roster_of(self, plan: Plan) -> dict[str, tuple[str, int]]:
        return {member: self.roster[member] for member in plan.members}

    def _lose_gone(self) -> None:
        self.lose(self._leases.gone(time.monotonic()))

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._leases.look_s)
            self._lose_gone()

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a change of members broke", exc_info=error)
            self._host.fail(f"no plan for those who are left: {error}")
