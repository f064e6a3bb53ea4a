"""The coordinator of members that reduce in rounds, by the trees of a plan.

a round is complete  another plan may have come into force; links are measured, and the planner may replan
a plan is adopted    the members prepare it, and follow it from some round on (see PlanSwaps)
a member is lost     the pending swap is dropped; the others report what they hold, and go on under a plan without it
a member joins       once it reaches most others, a plan that includes it is adopted like any other; it copies its
                     state from the nearest member
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from testbed.api.requests import ForcePlan, ForcePolicy, Request
from testbed.controller.allreduce.plan_swaps import PlanSwaps
from testbed.controller.allreduce.recovery import Recovery
from testbed.controller.model.actions import Actions, After, Announce, Contradiction, Fail, Tell, TellAll
from testbed.controller.model.clocks import SYSTEM, Clocks
from testbed.controller.model.coordinator import Coordinator, NotForMembers
from testbed.controller.model.membership import GroupState
from testbed.controller.model.round_log import ReportedRound
from testbed.controller.model.spec import ControllerSpec, PlanningSpec
from testbed.controller.replanning.plan_maker import PlanMaker
from testbed.controller.replanning.plan_requests import PlanRequests
from testbed.controller.replanning.planner import Planner
from testbed.planning import Pair, PhysicalLink, Policy, PolicyError, make_policy
from testbed.protocol import (
    Arrived,
    ControlMessage,
    Goodbye,
    Held,
    Hello,
    Holding,
    Lost,
    Rejoin,
    Renew,
    Report,
    Stop,
    Unreached,
)

log = logging.getLogger(__name__)

#: Rounds that are searched for the newest value of each metric, since models are evaluated in some rounds only.
NEWEST_ROUNDS = 50

#: Seconds after which a member that waits to join is asked once more whether it reaches the others.
REACH_AGAIN_S = 2.0


@dataclass(slots=True)
class Joiner:
    """A member that waits to join. It is asked until it reaches all others, or a plan with it is under way."""

    hello: Hello
    #: The present members that it did not reach when last asked.
    missing: frozenset[str] = frozenset()
    #: Whether a plan with it was requested.
    requested: bool = False


class AllReduceCoordinator(Coordinator):
    """Follows an all-reduce group's rounds, replans, and reconfigures the group when members leave or join.

    Attributes:
        group: The members, plans and rounds. Only the modules of `allreduce` change them.
        maker: The known network, and the other inputs of plans. Only the planner, its monitor and `follow` change it.
        swaps: The swaps of plans.
        planner: Replans: proposes plans, and decides which of them are worth a swap.
    """

    def __init__(self, spec: ControllerSpec, planning: PlanningSpec, out: Path, clocks: Clocks = SYSTEM) -> None:
        super().__init__(spec, clocks)
        self.group = GroupState(spec, self.identities, out, clocks)
        self.maker = PlanMaker(spec, planning, self.group)
        requests = PlanRequests()
        self.swaps = PlanSwaps(self.group, self.maker.knowledge, requests)
        self.planner = Planner(self.group, self.maker, requests, self.swaps.adopt, out)
        self._unjoined: dict[str, Joiner] = {}
        self._recovery = Recovery(self.group, self.maker, self.planner, self._remove_members)

    @property
    def present(self) -> frozenset[str]:
        """The members of the current generation."""
        return self.group.membership.present

    def start(self) -> None:
        """Make the first plan. Raises PolicyError if the run's policy has none."""
        self.group.plans.begin(self.planner.first_plan())

    def close(self) -> None:
        """Close the decision log."""
        self.planner.close()

    # Members

    def begin(self, hellos: Mapping[str, Hello]) -> Actions:
        """Begin the run: send each member the plan, and its job, and start the checks of leases."""
        self.group.plans.epochs.begin()
        membership = self.group.membership
        membership.roster = {member: hello.address for member, hello in hellos.items()}
        for member in self.spec.members:
            yield membership.welcome(member, self.spec.jobs[member], self.group.plans.plan)
        yield from self._start_training()

    def rejoin(self, hello: Hello, rejoin: Rejoin) -> Actions:
        """Take back a reconnected member.

        Its state is not trusted: each epoch and plan is checked against the records of this controller and of the one
        before it.

        Raises:
            Contradiction: The member's state is impossible, or this run takes no members back.
        """
        restarted = not self.running
        if self.spec.elastic is None or (restarted and not self.group.plans.epochs.resumed):
            text = f"{hello.member!r} reconnected to a run that it can't have been in; start the member again"
            raise Contradiction(text, rule="not-begun", member=hello.member)
        if rejoin.newest > (made := self.group.plans.epochs.newest):
            text = f"{hello.member!r} reports plan epoch {rejoin.newest}, and the newest that was handed out is {made}"
            raise Contradiction(text, rule="unknown-epoch", member=hello.member, epoch=rejoin.newest)
        plan = self.group.plans.reported_plan(rejoin, self.spec.members)
        membership, before, now = self.group.membership, self.group.plans.plan, self.clocks.monotonic()
        if restarted:
            self.group.plans.recover(plan, begins=True)
            membership.recover(plan, dict(rejoin.roster))
            yield from self._start_training()
        elif membership.not_reconnected and rejoin.member in self.present:
            self.group.plans.recover(plan, begins=False)
            if joined := {*self.group.plans.plan.members} - {*before.members}:
                membership.recover_joined(joined, rejoin.roster, now)
        yield from membership.rejoin(hello, rejoin, now)
        if rejoin.member in self.present:
            yield from self.swaps.reconnected(rejoin.member)
        if membership.abort_unfinished:
            yield from self._abort("a member was lost while the controller was down")

    def join(self, hello: Hello) -> Actions:
        """Request a plan with a member that connects during the run.

        A member that was present or joining before lost its state by a restart.
        """
        for action in self._remove_members({hello.member: "it was restarted"}):
            if not (isinstance(action, Tell) and action.member == hello.member):  # the new process waits there
                yield action
        self.group.membership.roster[hello.member] = hello.address
        self._unjoined[hello.member] = Joiner(hello)
        yield self.group.membership.ask_reach(hello.member)

    def receive(self, message: ControlMessage) -> Actions:
        """Handle a member's message, and renew the member's lease.

        Raises:
            Contradiction: The message contradicts earlier ones or the state of the run.
        """
        membership, now = self.group.membership, self.clocks.monotonic()
        membership.leases.renew(getattr(message, "member", ""), now)  # any message proves that the member is alive
        match message:
            case Report():
                self.check_names(message)
                yield from self._reported(message)
            case Arrived():
                self.check_names(message)
                yield from self.planner.arrived(message)
            case Renew(member, finished) if finished:
                membership.leases.advance(member, now)
            case Held():
                yield from self.swaps.held(message)
            case Lost(member, peer, why) if self.running:
                log.info("%s reports a loss of %s: %s", member, peer, why)
                membership.report_loss(message, now)
                yield from self._remove_members(membership.lost_members(now))
            case Unreached() if self.running:
                self.check_names(message)
                yield from self._handle_unreached(message)
            case Holding():
                yield from self._recovery.holding(message)
            case Goodbye():
                yield from self._handle_goodbye(message)

    def died(self, member: str, why: str, for_good: bool = False) -> Actions:
        """Handle the end of a member's connection before its goodbye.

        A member of an elastic run may reconnect within its lease. In other runs the run fails. A member that is
        excluded (`for_good`) is lost at once.
        """
        if not (self.spec.elastic and self.running):
            yield Fail(f"{member}: {why}")
            return
        if for_good:
            yield from self._remove_members({member: why})
            return
        self.group.membership.leases.disconnect(member)
        self._unjoined.pop(member, None)
        yield from self._remove_members(self.group.membership.lost_members(self.clocks.monotonic()))
        yield from self.swaps.abandon_join(member, why)

    def _handle_unreached(self, unreached: Unreached) -> Actions:
        """Remove members that are cut off, or have a member join once it reaches most others.

        A member that joined before could stop the others: they would wait for it in the first round with it. Plans
        have no edges between the member and those that it does not reach.
        """
        membership, member = self.group.membership, unreached.member
        if member in self.present:
            membership.report_unreached(unreached, self.clocks.monotonic())
            yield from self._remove_cut_off()
            return
        joiner = self._unjoined.get(member)
        if joiner is None or self._comes(member):
            return
        before, joiner.missing = joiner.missing, self.present.intersection(unreached.peers)
        if 2 * len(joiner.missing) < len(self.present):
            membership.record_apart(member, joiner.missing)
            if not joiner.requested:
                joiner.requested = True
                self.planner.request_join(member)
            elif joiner.missing != before:
                self.planner.reconsider()  # there may have been no plan without the edges that it has now
        elif joiner.missing != before:
            log.info("%s can't join yet: it can't reach %s", member, ", ".join(sorted(joiner.missing)))
        if joiner.missing:
            yield After(REACH_AGAIN_S, partial(self._ask_again, joiner))
        else:
            del self._unjoined[member]

    def _remove_cut_off(self) -> Actions:
        plan, now = self.group.plans.plan, self.clocks.monotonic()
        yield from self._remove_members(self.group.membership.cut_off(plan, now))

    def _ask_again(self, joiner: Joiner) -> Actions:
        member = joiner.hello.member
        if self.running and joiner is self._unjoined.get(member) and not self._comes(member):
            yield self.group.membership.ask_reach(member)

    def _comes(self, member: str) -> bool:
        """Return whether a member is present, or a plan with it is under way."""
        pending = self.group.plans.pending
        return member in self.present or (pending is not None and pending.joins == member)

    def proceed(self) -> Actions:
        """Consider the queued requests for a plan, one at a time."""
        yield from self.planner.proceed()

    def finish(self) -> Actions:
        """Release the members of an elastic run, which stay for each other after their goodbyes."""
        if self.spec.elastic:
            yield TellAll(Stop("done"))

    def end(self) -> None:
        """Stop checking leases, and give up a recovery from a lost member that is under way."""
        super().end()
        self.group.phase = "over"
        self.group.membership.reconfiguration = None

    def _start_training(self) -> Actions:
        self.running, self.group.phase = True, "running"
        if self.spec.elastic:
            leases = self.group.membership.leases
            leases.begin(self.present, self.clocks.monotonic())
            yield After(leases.check_interval_s, self._check_leases)

    def _check_leases(self) -> Actions:
        now = self.clocks.monotonic()
        yield from self._remove_members(self.group.membership.lost_members(now))
        yield from self._remove_cut_off()
        if self.running and (why := self.group.membership.broken_connection(now)):
            log.warning("%s", why)
            yield from self._abort(why)
        yield After(self.group.membership.leases.check_interval_s, self._check_leases)

    def _abort(self, why: str) -> Actions:
        """Drop the pending swap and abort the current round, although no member is gone."""
        yield from self.swaps.drop_pending(why)
        yield from self.group.abort(why)

    def _handle_goodbye(self, goodbye: Goodbye) -> Actions:
        member = goodbye.member
        if goodbye.error and self.spec.elastic and self.running:
            yield from self._remove_members({member: goodbye.error})
        else:
            self.goodbyes[member] = goodbye
            self.group.membership.leases.leave(member)
            if goodbye.error:
                yield Fail(f"{member}: {goodbye.error}")
        yield Announce()

    # Rounds

    def _reported(self, report: Report) -> Actions:
        newest = self.group.plans.epochs.newest
        if report.epoch > newest:
            text = f"its report of round {report.round} names plan epoch {report.epoch}, and the newest is {newest}"
            raise Contradiction(
                text, rule="unknown-epoch", member=report.member, round=report.round, epoch=report.epoch
            )
        self.group.membership.leases.advance(report.member, self.clocks.monotonic())
        if (done := self.group.rounds.add(report)) is not None:
            yield from self._round_over(done)

    def _round_over(self, done: ReportedRound) -> Actions:
        """Handle a complete round: activate a swap, admit a member, measure the links, and perhaps replan."""
        swap = self.swaps.round_over()
        if swap is not None and swap.joins:
            self.group.membership.admit(swap.joins)
            self.record_event("came", swap.joins, done.number, swap.plan.epoch)
        yield from self.planner.round_over(done)
        yield Announce()

    # Lost members

    def _remove_members(self, gone: Mapping[str, str]) -> Actions:
        """Remove lost members, each with the reason. The others go on if they still make a quorum."""
        group = self.group
        for member in gone.keys() - self.present:
            self._unjoined.pop(member, None)
            group.membership.leases.end(member)
            yield from self.swaps.abandon_join(member, gone[member])
        gone = {member: why for member, why in gone.items() if member in self.present}
        if not gone:
            return
        for member, why in gone.items():
            log.warning("%s is gone: %s", member, why)
            self.goodbyes.pop(member, None)
        group.rounds.forget(gone)
        yield from group.membership.remove(gone)
        yield from self.swaps.drop_pending("; ".join(f"{member} is gone" for member in gone))
        group.plans.remove_members(gone)
        for done in group.rounds.recheck():
            yield from self._round_over(done)
        epoch = group.plans.epochs.next()
        for member, why in gone.items():
            self.record_event("left", member, group.last_round, epoch, why)
        if self.over:
            return
        reason = "; ".join(f"{member} is gone: {why}" for member, why in gone.items())
        if (left := len(self.present)) < group.membership.quorum:
            yield Fail(f"{reason}; {left} members are left, and the quorum is {group.membership.quorum}")
            return
        yield from group.membership.abort(epoch, reason, self.clocks.monotonic())

    # The run and people

    def follow(self, spec: ControllerSpec) -> None:
        """Use this spec from now on: the run's, with one more member, which is not present yet."""
        assert spec.planning is not None
        self.spec = spec
        self.group.jobs = spec.jobs
        self.maker.follow(spec.planning, self.clocks.unix())

    def change_network(self, links: Mapping[str, PhysicalLink], routes: Mapping[Pair, tuple[str, ...]]) -> None:
        """Use another declared network, and request a plan for it. Raises ViewError if it contradicts itself."""
        self.planner.change_network(links, routes)

    def do(self, request: Request) -> Actions:
        """Carry out a ForcePolicy or ForcePlan request. Raises NotForMembers for other requests, PolicyError."""
        match request:
            case ForcePolicy():
                self._force(make_policy(request.policy, request.options))
            case ForcePlan():
                self._force(make_policy("given", {"document": request.plan}))
            case _:
                raise NotForMembers("this run's members reduce by plans; it takes ForcePolicy and ForcePlan", request)
        return iter(())

    def _force(self, policy: Policy) -> None:
        """Use a user's policy from now on. Raises PolicyError if the run is over or can't follow the policy's plans."""
        if self.group.phase == "over":
            raise PolicyError(
                "the training is over, so no other plan can come into force; start another run", rule="over"
            )
        self.maker.check_forced(policy)
        self.planner.force(policy)

    # Progress

    def rounds(self, since: int) -> list[dict[str, Any]]:
        """Return summaries of the kept complete rounds from number `since` on."""
        return [done.to_json() for done in self.group.rounds.complete if done.number >= since]

    def status(self) -> dict[str, Any]:
        """Return the last round, the plan in force, the newest metrics, the estimates of links, and the swaps."""
        last, pending, plan = self.group.rounds.last, self.group.plans.pending, self.group.plans.plan
        estimates = self.maker.knowledge.estimates(self.group.clocks.unix())
        metrics: dict[str, float | None] = {}
        for done in self.group.rounds.complete[-NEWEST_ROUNDS:]:
            metrics.update(done.metrics)
        return {
            "round": last.number if last else None,
            "epoch": plan.epoch,
            "pending_epoch": pending.plan.epoch if pending else None,
            "policy": plan.policy,
            "plan": plan.to_json(),
            "round_seconds": last.seconds if last else None,
            "metrics": metrics,
            "estimates": {name: estimate.to_json() for name, estimate in estimates.items()},
            "swaps": self.group.plans.swaps_to_json(),
            **({"rounds": (self.group.last_round or 0) + self.maker.rounds_left} if self.maker.training else {}),
        }

    def final(self) -> dict[str, Any]:
        """Return the counts of rounds and of lost and duplicated updates, and the swaps."""
        rounds, plans = self.group.rounds, self.group.plans
        return {
            "rounds": rounds.count,
            "gaps": None,
            "graph_swaps": [],
            "epoch": plans.plan.epoch,
            "lost_updates": rounds.lost,
            "duplicated_updates": rounds.duplicated,
            "swaps": plans.swaps_to_json(),
        }
