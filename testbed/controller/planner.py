"""Plans: one task at a time considers them, so swaps never overlap.

Another begins when the last one is in force, or was dropped because a member can't hold it. What is in force is for the
members to say: they agreed on it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from testbed.controller.allowance import Allowance
from testbed.controller.decision import NEWEST, Decision, Standing
from testbed.controller.decision_log import DecisionLog
from testbed.controller.explore import Explorer
from testbed.controller.foresight import Foresight
from testbed.controller.knowledge import Knowledge
from testbed.controller.membership import Membership
from testbed.controller.outcome import State
from testbed.controller.plan_history import PlanHistory
from testbed.controller.plan_requests import PlanRequest, PlanRequests
from testbed.controller.proposal import Proposal, Question, propose
from testbed.controller.round_log import ReportedRound, RoundLog
from testbed.controller.spec import ControllerSpec
from testbed.controller.swaps import Swap
from testbed.controller.trust import Promise, Trust
from testbed.plan import Plan
from testbed.planning import Pair, PhysicalLink, Policy, PolicyError, View, make_policy, predict
from testbed.protocol import Arrived, Confirm, Held, Message, Prepare, Report, Stop

#: Plans that are remembered: what a network did once it often does again.
PAST = 3

log = logging.getLogger(__name__)

#: A train is told when it is over, and what it is held against came to others up to so much later.
STRAGGLES_S = 0.3

#: Members say within the round's timeout whether they hold a plan; who says nothing for so much longer never will.
HOLD_MARGIN_S = 10.0

#: What plans for those who are left when the run's own policy has none: it needs nothing but that they reach another.
LAST_RESORT = "mst"


class Host(Protocol):
    """What the controller is and does for this."""

    state: State
    members: Membership

    def connected(self, member: str) -> bool:
        """Whether it is there."""

    def send(self, member: str, message: Message) -> None:
        """Send to a member that is there."""

    def send_all(self, message: Message) -> None:
        """Send to every member that is there."""

    def fail(self, reason: str) -> None:
        """The run can't go on."""

    def announce(self) -> None:
        """Let those who wait for a change go on."""


#: A link that fell to less than this part is reason enough to look for another plan in the midst of a round; of others
#: it must take longer than those before it.
HALVED = 0.5


class Planner:
    """Considers plans by what is known of the network, and sees those that it adopts into force.

    `book` has the rounds under them, `policy` makes them, `course` says which is in force.
    """

    def __init__(self, spec: ControllerSpec, host: Host, out: Path) -> None:
        self.book = RoundLog(self._expected)
        self.course = PlanHistory()
        self.policy = spec.make_policy()
        self.knowledge = Knowledge(spec.view)
        self._spec = spec
        self._host = host
        self._explorer = Explorer()
        self._requests = PlanRequests()
        self._ledger = DecisionLog(out)
        self._declarations = 0
        self._foresight = Foresight()
        self._allowance = Allowance()
        self._considered_s = 0.0
        self._measured_s = 0.0
        self._fell_by = -NEWEST  # so many rounds were complete when a link was last seen to fall
        self._judged = 0
        self._promised_s = float("inf")
        self._trust = Trust()
        self._past: tuple[Plan, ...] = ()
        self._busy = False

    async def start(self) -> None:
        """Make the first plan. PolicyError when the first view has none."""
        view = self._view(time.time())
        plan = self._plan(self.policy, view)
        self.course.begin(plan)
        self._ledger.store(plan)
        first = Decision(True, "the first plan", None, predict(plan, view).seconds)
        await self._record(PlanRequest("period"), view, first, None, plan)
        self._considering = asyncio.create_task(self._consider_requests())
        self._considering.add_done_callback(self._ended)

    async def close(self) -> None:
        """Nothing is considered any more."""
        self._considering.cancel()
        await asyncio.gather(self._considering, return_exceptions=True)
        self._ledger.close()

    @property
    def considering(self) -> bool:
        """Whether a plan is being considered."""
        return self._busy or not self._requests.empty

    # What the run asks for

    def change_network(self, links: Mapping[str, PhysicalLink], routes: Mapping[Pair, tuple[str, ...]]) -> None:
        """The underlay is another one now: look at it at once. ViewError when it contradicts itself."""
        self.knowledge.redeclare(links, routes, time.time())
        self._declarations += 1
        self._ask(PlanRequest("network"))

    def force(self, policy: Policy) -> None:
        """Go by `policy` from now on, and put its plan in force whatever it saves."""
        self.policy = policy
        self._ask(PlanRequest("forced", policy))

    # What members say

    def reported(self, report: Report) -> None:
        """A member finished a round. ValueError when it said so before."""
        if (done := self.book.add(report)) is not None:
            self._round_done(done)

    def arrived(self, arrived: Arrived) -> None:
        """A member is in a round that takes long. Once all who are there have said so, links are measured.

        Where one fell another plan is looked for at once: what members come to hold in the midst of a round they may
        go by in the next.
        """
        now = time.time()
        self.book.hear(arrived.member, now)
        self.knowledge.take({(peer, arrived.member): trains for peer, trains in arrived.arrivals.items()})
        heard_s = self.book.heard_s(self._host.members.present)
        if heard_s <= self._measured_s:
            return
        self._measured_s = now
        self.knowledge.measure(heard_s - STRAGGLES_S)
        self._ledger.estimated(now, self.knowledge.estimates(now))
        self._explore(now)
        fell = self.knowledge.fell(now)
        if fell and (min(fell.values()) < HALVED or self._standing(now).slow):
            self._fell_by = len(self.book.complete)
            self._ask_if_affordable(now, urgent=True)

    def held(self, held: Held) -> None:
        """A member holds a plan, or never will."""
        swap = self.course.pending
        if swap is None or swap.plan.epoch != held.epoch:
            return  # dropped meanwhile
        if held.refusal:
            self._give_up(swap, f"{held.member} can't hold it: {held.refusal}")
        else:
            swap.hold(held.member, time.time())
            if swap.held_s is not None and not swap.joins:
                self._host.send_all(Confirm(swap.plan.epoch))
        self._host.announce()

    # Members that go and come: see Membership

    def next_epoch(self) -> int:
        """One that no plan has."""
        return self.course.next_epoch()

    def last_round(self) -> int | None:
        """The newest that all have reported."""
        return self.book.last.number if self.book.last else None

    async def plan_for(self, members: frozenset[str], epoch: int) -> Plan:
        """The policy's plan for these, or another's where it has none. PolicyError when they can't reach another."""
        view = self._view(time.time()).among(members)
        try:
            plan = await asyncio.to_thread(self._plan, self.policy, view)
        except PolicyError as error:
            log.warning("no plan of %s for %s: %s", self.policy.name, sorted(members), error)
            plan = self._plan(make_policy(LAST_RESORT, {}), view)
        return plan.with_epoch(epoch)

    def comes(self, member: str) -> None:
        """It wants to take part from now on."""
        self._ask(PlanRequest("member", joins=member))

    def not_come(self, member: str, why: str) -> None:
        """It was to come, and is gone."""
        self._requests.forget(member)
        if (swap := self.course.pending) is not None and swap.joins == member:
            self._give_up(swap, f"{member}: {why}")

    def lose(self, gone: Mapping[str, str]) -> None:
        """Plans under way are given up, and rounds are complete without who is gone."""
        if self.course.pending is not None:
            self._drop(self.course.pending, "; ".join(f"{member} is gone" for member in gone))
        self.course.lose(gone)
        for done in self.book.recheck():
            self._round_done(done)

    def resumed(self, plan: Plan, why: str) -> None:
        """The plan is in force: those who are left had nothing to agree on."""
        self._ledger.store(plan)
        self.course.resume(plan, why, self.last_round() or 0)
        self._requests.ask_deferred()
        self._host.announce()

    # Rounds and swaps

    def _round_done(self, done: ReportedRound) -> None:
        now = time.time()
        self._activate()
        self._trust.see(self.book)
        self.knowledge.observe(done.samples(), done.arrivals(), now)
        fell = bool(self.knowledge.fell(now))
        if fell:
            self._fell_by = len(self.book.complete)
        self.knowledge.round_over(now)
        self.knowledge.clock(self._spec.speeds(done.rates()))
        self._ledger.estimated(now, self.knowledge.estimates(now))
        self._explore(now)
        if fell or now - self._considered_s >= self._spec.period_s:
            self._ask_if_affordable(done.finished_s, urgent=fell)
        self._host.announce()

    def _ask_if_affordable(self, now: float, urgent: bool) -> None:
        """Have a plan considered, if none is, the one in force may be left, and rounds remain to profit from that."""
        dwell_rounds = self._spec.dwell_rounds
        idle = self.course.pending is None and not self.considering
        worth = (
            not self._spec.hold and self._left() >= dwell_rounds and self._standing(time.time()).settled(dwell_rounds)
        )
        if idle and worth and self._allowance.has_some(now, urgent):
            self._ask(PlanRequest("period"))

    def _activate(self) -> None:
        """The members may go by another plan since the last round."""
        before = self.course.pending
        swap = self.course.activated(self.book.complete)
        if swap is not None and swap.joins:
            self._host.members.admit(swap.joins, swap.plan)
        if swap is not None and swap is before:
            self._requests.ask_deferred()

    def _explore(self, now: float) -> None:
        """Have members probe what is unknown, if there will be another plan to profit from it."""
        if self._spec.hold or self._left() < self._spec.dwell_rounds:
            return
        present = self._host.members.present
        unknown = {
            name: [pair for pair in pairs if present.issuperset(pair)]
            for name, pairs in self.knowledge.unknown(now).items()
        }
        probes = self._explorer.probes(unknown, self.knowledge.view(now), now)
        for member, probe in probes.items():
            self._host.send(member, probe)

    def _left(self) -> int:
        """Rounds still to come, as the jobs have it."""
        return self._spec.rounds - len(self.book.complete)

    def _drop(self, swap: Swap, why: str) -> None:
        """Give up a plan that can't be held everywhere. The next Prepare takes it back from who holds it, or a Halt."""
        log.warning("epoch %d dropped: %s", swap.plan.epoch, why)
        self.course.drop(swap)
        if swap.joins:
            self._host.members.done(swap.joins)
            self._host.send(swap.joins, Stop(f"could not be let in: {why}", again=True))
        self._ask(PlanRequest("dropped", why=f"epoch {swap.plan.epoch} was dropped: {why}"))
        self._requests.ask_deferred()

    def _give_up(self, swap: Swap, why: str) -> None:
        """Drop a plan; one with a member more may be agreed on already, by members that would wait for that one."""
        self._drop(swap, why)
        if swap.joins:
            self._host.members.regroup(f"{swap.joins} does not come: {why}")

    def _drop_late(self, swap: Swap) -> None:
        if swap is self.course.pending and swap.held_s is None and self._host.state == "running":
            missing = sorted(set(swap.plan.members) - swap.holders)
            self._give_up(swap, f"{', '.join(missing)} did not say in time whether they hold it")
            self._host.announce()

    # Considering

    def _ask(self, request: PlanRequest) -> None:
        if self._spec.circle is None:  # members without a centre go by no plan
            self._requests.ask(request)

    async def _consider_requests(self) -> None:
        while True:
            self._busy = False
            request = await self._requests.next()
            self._busy = True
            if request.reason == "dropped":
                await self._record_dropped(request)
            elif self.course.pending is not None or self._host.members.changing:
                self._requests.defer(request)
            elif self._host.state in ("waiting", "running"):
                await self._consider(request)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """An error of ours must not leave the members waiting."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the controller broke", exc_info=error)
            self._host.fail(f"the controller broke: {error!r}")

    async def _consider(self, request: PlanRequest) -> None:
        members = self._host.members
        if request.joins and (not self._host.connected(request.joins) or request.joins in members.present):
            return  # it went before its turn
        last = self.course.plan
        proposal = await self._propose(request)
        view, decision, plan = proposal.view, proposal.decision, None
        if members.changing or set(view.names) != members.present | ({request.joins} - {""}):
            self._ask(request)  # a member was lost meanwhile, and that may be mended already
            return
        self._foresight = proposal.foresight
        self._allowance.spend(proposal.seconds)
        if proposal.plan is None:
            log.warning("no other plan: %s", decision.why)
        elif decision.adopt and self._host.state in ("waiting", "running"):
            reason = request.reason if request.policy else f"{request.reason}: {decision.why}"
            self._past = () if request.policy else _remembered(proposal.plan, last, *self._past)
            plan = self._adopt(proposal.plan, reason, request.joins)
            self._promise(request, decision, last, plan)
        await self._record(request, view, decision, last, plan, proposal.choice)

    async def _propose(self, request: PlanRequest) -> Proposal:
        """What comes of the request, by the view of the newest declaration.

        The network may change while the policy thinks; what it thought of is of no use then.
        """
        while True:
            declarations = self._declarations
            now = self._considered_s = time.time()
            question = Question(
                view=self._view(now, request.joins),
                doubts=self.knowledge.doubts(now),
                current=self.course.plan,
                past=self._past,
                standing=self._standing(now),
                foresight=replace(self._foresight, compute_s=self.book.compute_s()),
                network_changed=request.reason == "network",
                anyway=f"{request.joins} comes" if request.joins else "forced" if request.reason == "forced" else "",
            )
            rounds = len(self.book.complete)
            proposal = await asyncio.to_thread(propose, request.policy or self.policy, self._spec, question)
            if declarations == self._declarations:
                self._judged = rounds
                return proposal

    def _standing(self, now: float) -> Standing:
        epoch = self.course.plan.epoch
        finished_s = self.book.last.finished_s if self.book.last else now
        pauses = [swap.pause_ms / 1e3 for swap in self.course.swaps if swap.pause_ms is not None]
        return Standing(
            rounds=sum(done.epoch == epoch for done in self.book.complete),
            whole_s=() if self._measured_s > finished_s else tuple(self.book.whole_s(self._judged, epoch)),
            newest_s=tuple(self.book.whole_s(len(self.book.complete) - NEWEST, epoch)),
            on_s=now - finished_s,
            fell=len(self.book.complete) - self._fell_by < NEWEST,
            left=self._left(),
            swaps_s=tuple(pauses),
            promised_s=self._promised_s,
            trust=self._trust.part,
        )

    def _adopt(self, plan: Plan, reason: str, joins: str) -> Plan:
        """Number `plan` and have the members prepare for it; until they are there it is simply the first plan."""
        running = self._host.state == "running"
        plan = plan.with_epoch(self.course.next_epoch() if running else self.course.newest)
        self._ledger.store(plan)
        log.info("epoch %d: %s (%s)", plan.epoch, plan.policy, reason)
        if running:
            self._prepare(self.course.prepare(plan, reason, self.last_round() or 0, joins))
        else:
            self.course.begin(plan)
        self._host.announce()
        return plan

    def _promise(self, request: PlanRequest, decision: Decision, last: Plan, plan: Plan) -> None:
        """Keep what rounds under the adopted plan are to take, where it was adopted for that."""
        of_rounds = (request.policy or self.policy).measure is None
        self._promised_s = decision.proposed_s if of_rounds else float("inf")
        if of_rounds and request.reason == "period" and decision.current_s is not None:
            self._trust.promised(Promise(1 - decision.proposed_s / decision.current_s, last.epoch, plan.epoch))

    def _prepare(self, swap: Swap) -> None:
        """Have the members hold a plan; with one that joins, see Membership."""
        plan, joins = swap.plan, swap.joins
        if joins:
            edges = self.knowledge.view(time.time()).edges
            swap.holders.add(joins)
            rates = {source: edge.rate_bps for (source, to), edge in edges.items() if to == joins}
            self._host.members.prepare(plan, joins, self._spec.jobs[joins], rates)
        else:
            self._host.send_all(Prepare(plan.to_json()))
        answered_s = max(job.round_timeout_s for job in self._spec.jobs.values()) + HOLD_MARGIN_S
        asyncio.get_running_loop().call_later(answered_s, self._drop_late, swap)

    async def _record_dropped(self, request: PlanRequest) -> None:
        decision = Decision(False, request.why, None, float("inf"))
        await self._record(request, self._view(time.time()), decision, self.course.plan, None)

    async def _record(
        self,
        request: PlanRequest,
        view: View,
        decision: Decision,
        last: Plan | None,
        adopted: Plan | None,
        choice: int | None = None,
    ) -> None:
        """Keep what was decided by the view while `last` was in force."""
        policy = request.policy or self.policy
        estimates = self.knowledge.estimates(view.at_s)
        await self._ledger.record(
            view, policy, decision, request.reason, self.last_round(), last, adopted, choice, estimates
        )

    # What is known

    def _expected(self, epoch: int) -> frozenset[str]:
        found = self.course.members(epoch)
        return self._host.members.present if found is None else found

    def _view(self, now: float, joins: str = "") -> View:
        """What is known of the network, as far as it is that of those who are there."""
        view = self.knowledge.view(now)
        names = self._host.members.present | ({joins} if joins else set())
        return view if names == set(view.names) else view.among(names)

    def _plan(self, policy: Policy, view: View) -> Plan:
        return self._spec.dress(policy.plan(view), view)


def _remembered(plan: Plan, *before: Plan) -> tuple[Plan, ...]:
    """The plans that were in force before this one, the newest first."""
    return tuple(other for other in before if other.shape() != plan.shape())[:PAST]
