"""The planner: considers one plan at a time under the known network, and has adopted plans put in force.

a request --view, performance--> propose (in the background) --adopt?--> the swaps of plans
    `---- deferred during a swap or a reconfiguration        every decision, with its reason --> DecisionLog
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from testbed.controller.knowledge.network_monitor import NetworkMonitor
from testbed.controller.model.actions import Action, Actions, Background
from testbed.controller.model.membership import GroupState
from testbed.controller.model.round_log import ReportedRound
from testbed.controller.replanning.decision import Decision, SwapRules
from testbed.controller.replanning.decision_log import DecisionLog, DecisionRecord
from testbed.controller.replanning.plan_maker import PlanMaker
from testbed.controller.replanning.plan_requests import PlanRequest, PlanRequests
from testbed.controller.replanning.proposal import Dress, PlanQuestion, Proposal, propose
from testbed.controller.replanning.track_record import TrackRecord
from testbed.plan import Plan
from testbed.planning import Pair, PhysicalLink, Policy, PolicyError, predict
from testbed.plugins import as_policy_errors
from testbed.protocol import Arrived

log = logging.getLogger(__name__)

#: A link that fell below this part of its rate is reason enough to replan during a round. If a link fell by less, the
#: round must also take longer than those before it.
HALVED = 0.5

#: The part of one processor that considering plans may use. More would slow down the rounds that plans should speed up.
#: With SAVED_S and BORROWED_S, three minutes of training stay below 5 %.
SHARE = 0.04

#: Seconds of processor time that are saved up at most, for busy moments after quiet ones; the part of them that is
#: reserved for urgent requests; and what a request may borrow if a link fell below HALVED. With 16 members an attempt
#: costs half a second, so that without borrowing the first one after a fall came up to 12 s later.
SAVED_S, RESERVE_S, BORROWED_S = 1.0, 0.5, 0.5


class ProcessorBudget:
    """A budget of processor time that grows by SHARE of the time that passes, up to SAVED_S.

    It may be overdrawn, since the cost of work is known only afterwards; then it allows nothing until it is above 0.
    """

    def __init__(self) -> None:
        self._left_s = SAVED_S
        self._at_s: float | None = None

    def allows(self, now_s: float, least_s: float = RESERVE_S) -> bool:
        """Return whether work may begin now.

        Args:
            now_s: The time in seconds of a clock that never jumps.
            least_s: The processor time that must be left: RESERVE_S, 0 for urgent work, or -BORROWED_S.
        """
        passed_s = 0.0 if self._at_s is None else now_s - self._at_s
        self._left_s = min(self._left_s + SHARE * passed_s, SAVED_S)
        self._at_s = now_s
        return self._left_s > least_s

    def spend(self, seconds: float) -> None:
        """Subtract processor seconds that were used from the budget."""
        self._left_s -= seconds


#: During a round, replanning finds nothing new before the round has lasted AGAIN times as long as at the last attempt,
#: unless another link fell, or one fell to less than LOWER of what was left of it then. Without this wait, six attempts
#: in the first 1.5 s after a fall used up the budget, and rounds of 5 s went on for 18 s until the next attempt.
AGAIN, LOWER = 1.25, 0.8

#: After a period, replanning finds nothing new if no link's rate has changed by this factor since the last attempt in
#: vain. Attempts each 2 s over constant links left half of the budget for the moment in which all links changed.
MOVED = 1.25

#: The periods after which the controller replans whatever the links' rates. In the LATELY rounds after a fall it may
#: use the budget's reserve for that: a budget that attempts after a fall had overdrawn allowed no attempt for 17 s.
#: At any time, 16 members' attempts would leave nothing of the budget: attempts after falls waited 5 and 7 s.
OVERDUE = 2.5


@dataclass(frozen=True, slots=True)
class VainLook:
    """The last attempt to replan, which found no plan that is worth a swap."""

    #: The number of complete rounds then.
    rounds: int
    #: The links that had fallen, each with the part of its rate that was left.
    fell: Mapping[str, float]
    #: Seconds after the end of the last complete round, from which on another attempt may find more.
    until_s: float
    #: The estimated rate of each known link, bit/s.
    rates_bps: Mapping[str, float]
    #: Whether the best plan would have saved enough, but not surely.
    unsure: bool

    def may_repeat(self, rounds: int, fell: Mapping[str, float], since_last_s: float) -> bool:
        """Return whether another attempt during a round may find more.

        Args:
            rounds: The number of complete rounds now.
            fell: The links that have fallen by now, each with the part of its rate that is left.
            since_last_s: Seconds since the end of the last complete round.
        """
        lower = any(part < LOWER * self.fell.get(name, math.inf) for name, part in fell.items())
        return rounds != self.rounds or lower or since_last_s >= self.until_s

    def is_outdated(self, rates_bps: Mapping[str, float]) -> bool:
        """Return whether an attempt after a period may find more with these rates of links, in bit/s.

        It may if the last attempt was unsure, or if a rate has changed by MOVED or was not known then.
        """
        last = self.rates_bps
        return self.unsure or any(
            name not in last or not 1 / MOVED < rate_bps / last[name] < MOVED for name, rate_bps in rates_bps.items()
        )


class Planner:
    """Replans: periodically after rounds, when a link fell, and on request.

    Attributes:
        policy: The policy that makes the plans.
        monitor: Measures the network for the planner.

    Args:
        adopt: Starts a swap to a plan; given the plan, the reason, the member that joins with it or "", and whether
            the current round starts again under it. Returns the plan with its epoch.
    """

    def __init__(
        self,
        group: GroupState,
        maker: PlanMaker,
        requests: PlanRequests,
        adopt: Callable[[Plan, str, str, bool], Generator[Action, None, Plan]],
        out: Path,
    ) -> None:
        self.policy = maker.options.make_policy()
        self._group = group
        self._maker = maker
        self._clocks = group.clocks
        self._requests = requests
        self._adopt = adopt
        self._log = DecisionLog(out)
        self.monitor = NetworkMonitor(maker.knowledge, group.rounds, group.membership, self._log.estimated)
        self._track = TrackRecord(group, maker)
        self._budget = ProcessorBudget()
        self._declarations = 0
        self._considered_s = -math.inf  # on the monotonic clock
        self._vain_look: VainLook | None = None
        self._busy = False
        self._restart_from_s = -math.inf  # on the monotonic clock

    @property
    def considering(self) -> bool:
        """True if a plan is being considered or a request waits."""
        return self._busy or not self._requests.empty

    def first_plan(self) -> Plan:
        """Make the first plan, and record the decision.

        Raises:
            PolicyError: The policy has no plan for the first view.
        """
        view = self._maker.view(self._clocks.unix())
        plan = self._maker.plan(self.policy, view)
        decision = Decision(True, "the first plan", None, predict(plan, view).seconds)
        first = Proposal(view, plan, decision, self._track.predictor, None)
        self._log.record(DecisionRecord(first, self.policy, "period", adopted=plan), self._log.bound(view))
        return plan

    def close(self) -> None:
        """Close the decision log."""
        self._log.close()

    # Reasons to consider a plan

    def change_network(self, links: Mapping[str, PhysicalLink], routes: Mapping[Pair, tuple[str, ...]]) -> None:
        """Use another declared network, and request a plan for it at once.

        An oracle is told each period: nothing happens if the network is the declared one, and the plan that is being
        considered still counts if only rates have changed. Otherwise no plan that takes longer would be adopted.

        Raises:
            ViewError: the declaration contradicts itself.
        """
        change = self._maker.knowledge.redeclare(links, routes, self._clocks.unix())
        oracle = self._maker.options.view.knowledge == "oracle"
        if oracle and change == "none":
            return
        self.monitor.redeclare()
        self._track.redeclare()
        self._declarations += not oracle or change == "routes"
        self._requests.restore_deferred()
        self._requests.add(PlanRequest("network"))

    def force(self, policy: Policy) -> None:
        """Use `policy` from now on, and request its plan whatever it saves.

        Raises:
            PolicyError: the run can't use the policy.
        """
        policy.check(self._maker.view(self._clocks.unix()))
        self.policy = policy
        self._requests.restore_deferred()
        self._requests.add(PlanRequest("forced", policy))

    def request_join(self, member: str) -> None:
        """Request a plan with a member that joins."""
        self._requests.add(PlanRequest("member", joins=member))

    def round_over(self, done: ReportedRound) -> Actions:
        """Measure the network by a complete round. Request a plan if a link fell, or if the period is over."""
        now = self._clocks.unix()
        if self._maker.training is not None:
            self._maker.training.round_over(done, self._group.plans.plan)
        fell = self.monitor.round_over(done, self._maker.speeds(done.rates()), now)
        self._track.round_over()
        if fell:
            self._track.link_fell()
        yield from self._probes(now)
        passed_s, period_s = self._clocks.monotonic() - self._considered_s, self._maker.options.period_s
        overdue = passed_s >= OVERDUE * period_s
        if fell or overdue or (passed_s >= period_s and self._has_news(now)):
            # A fall stays urgent in the rounds after it: the attempts during its own round may have found no plan.
            performance = self._track.performance(now)
            urgent = performance.fell or (overdue and performance.fell_lately)
            self._request_if_affordable(0.0 if urgent else RESERVE_S)

    def arrived(self, arrived: Arrived) -> Actions:
        """Take a member's trains during a round. If links are measured now, request a plan where one fell.

        A link must have fallen by much, or during a slow round. Members that receive a plan during a round may follow
        it from the next round on.
        """
        now = self._clocks.unix()
        if not self.monitor.arrived(arrived, now):
            return
        performance = self._track.performance(now)
        yield from self._probes(now, hurry=performance.slow)
        fell = self._maker.knowledge.fell(now)
        severe = min(fell.values(), default=1.0) < HALVED
        if fell and (severe or performance.slow):
            self._track.link_fell()
            last = self._vain_look
            if last is None or last.may_repeat(self._group.rounds.count, fell, performance.since_last_s):
                self._request_if_affordable(-BORROWED_S if severe else 0.0)

    def _probes(self, now: float, hurry: bool = False) -> Actions:
        """Have members probe if plans may change and enough rounds are left to profit from it."""
        options = self._maker.options
        if not options.hold and self._maker.rounds_left >= options.dwell_rounds:
            yield from self.monitor.probes(now, self._clocks.monotonic(), self._group.plans.plan, hurry)

    def _has_news(self, now: float) -> bool:
        """Return whether replanning at Unix time `now` may find another plan than the last attempt.

        Where the controller also chooses how members train, the losses of the newest steps are always news.
        """
        last = self._vain_look
        return last is None or self._maker.training is not None or last.is_outdated(self._rates_bps(now))

    def _rates_bps(self, now: float) -> dict[str, float]:
        return {name: its.rate_bps for name, its in self._maker.knowledge.estimates(now).items()}

    def _request_if_affordable(self, least_s: float) -> None:
        """Request a plan unless one is considered, the one in force must stay, or too few rounds are left to profit.

        `least_s` of the budget must be left.
        """
        options = self._maker.options
        if self._group.plans.pending is not None or self.considering:
            return
        if options.hold or self._maker.rounds_left < options.dwell_rounds:
            return
        performance = self._track.performance(self._clocks.unix())
        if performance.may_be_judged(options.dwell_rounds) and self._budget.allows(self._clocks.monotonic(), least_s):
            self._requests.add(PlanRequest("period"))

    # Considering

    def proceed(self) -> Actions:
        """Consider the queued requests for a plan, one at a time."""
        group = self._group
        while not self._busy and not self._requests.empty:
            request = self._requests.take()
            if request.reason == "dropped":
                decision = Decision(False, request.why, None, float("inf"))
                dropped = Proposal(self._maker.view(self._clocks.unix()), None, decision, self._track.predictor, None)
                yield from self._record(request, dropped, group.plans.plan)
            elif group.plans.pending is not None or group.membership.reconfiguration is not None:
                self._requests.defer(request)
            elif group.phase != "over" and request.joins not in group.membership.present:
                yield from self._consider(request)

    def _consider(self, request: PlanRequest) -> Actions:
        """Have a proposal made in the background, from the present view."""
        self._busy = True
        now, self._considered_s = self._clocks.unix(), self._clocks.monotonic()
        options, current, training = self._maker.options, self._group.plans.plan, self._maker.training
        compute_s = (
            training.compute_s(current.training.local_steps if current.training else 1)
            if training
            else self._group.rounds.compute_s()
        )
        self._track.keep(compute_s)
        earlier = self._track.earlier_plans
        if training is not None:  # the trees of earlier plans may return, but not their schemes
            earlier = tuple(replace(plan, training=current.training, codec=current.codec) for plan in earlier)
        question = PlanQuestion(
            view=self._maker.view(now, request.joins),
            doubts=self._maker.knowledge.doubts(now),
            current=current,
            earlier_plans=earlier,
            performance=self._track.performance(now),
            predictor=replace(self._track.predictor, compute_s=compute_s),
            measurements=self._track.take_measurements(now),
            network_changed=request.reason == "network",
            adopt_because=f"{request.joins} comes" if request.joins else "forced" if request.reason == "forced" else "",
            training=self._maker.training_question() if request.reason in ("period", "network") else None,
        )
        margin = 1.0 if options.hold else options.margin  # no plan saves a whole round
        rules = SwapRules(margin, options.dwell_rounds)
        policy = request.policy or self.policy
        work = partial(_propose, policy, self._maker.dress_of(policy), rules, question, self._clocks.processor)
        yield Background(work, partial(self._decided, request, current, self._declarations))

    def _decided(self, request: PlanRequest, last: Plan, declarations: int, proposal: Proposal) -> Actions:
        """Adopt a proposal if its decision says so and the run has not changed meanwhile.

        `last` and `declarations` are the plan in force and the number of declared networks when the proposal was begun.
        """
        group = self._group
        self._budget.spend(proposal.seconds)
        if self._requests.is_withdrawn(request):  # the member that was to join is gone
            self._busy = False
            return
        if declarations != self._declarations:  # the proposal is for an earlier network
            yield from self._consider(request)
            return
        names = group.membership.present | ({request.joins} - {""})
        if group.membership.reconfiguration is not None or set(proposal.view.names) != names:
            self._busy = False
            self._requests.add(request)  # a member was lost meanwhile; the run may have recovered already
            return
        self._track.predictor = proposal.predictor
        adopted, decision, policy = None, proposal.decision, request.policy or self.policy
        if proposal.plan is None:
            log.warning("the policy %s has no plan: %s", policy.name, decision.why)
            if request.joins:  # the member waits for a network, a policy or members with which there is a plan
                self._requests.defer(request)
        elif decision.adopt and group.phase != "over":
            reason = request.reason if request.policy else f"{request.reason}: {decision.why}"
            of_rounds = policy.measure is None and proposal.plan.training == last.training
            restarts = of_rounds and request.reason == "period" and self._restarts(decision)
            adopted = yield from self._adopt(proposal.plan, reason, request.joins, restarts)
            before = "" if decision.current_s is None else f"{decision.current_s:.2f} s -> "
            saving = f"{'steps' if policy.measure else 'rounds'} {before}{decision.proposed_s:.2f} s predicted"
            log.info("plan %d (%s) adopted: %s; %s", adopted.epoch, adopted.policy, saving, reason)
            self._track.adopted(adopted, last, decision, request, of_rounds)
            self._vain_look = None
        else:
            self._vain_look = self._looked_in_vain(decision, policy)
        yield from self._record(request, proposal, last, adopted)

    def _restarts(self, decision: Decision) -> bool:
        """Return whether members should start the current round again under the adopted plan, and may.

        After a restart they have at least the time that the plan promised for a round.
        """
        now = self._clocks.monotonic()
        if not self._maker.elastic or now < self._restart_from_s:
            return False
        restarts = decision.restarts(self._track.performance(self._clocks.unix()))
        if restarts:
            self._restart_from_s = now + decision.proposed_s
        return restarts

    def _looked_in_vain(self, decision: Decision, policy: Policy) -> VainLook:
        now, keeps = self._clocks.unix(), 1 - self._maker.options.margin
        since_last_s = self._track.performance(now).since_last_s
        # The plan in force counts as at least as slow as the current round, which goes on.
        worth_s = decision.proposed_s / keeps if policy.measure is None else 0.0
        return VainLook(
            rounds=self._group.rounds.count,
            fell=self._maker.knowledge.fell(now),
            until_s=max(worth_s if math.isfinite(worth_s) else 0.0, AGAIN * since_last_s),
            rates_bps=self._rates_bps(now),
            unsure=decision.current_s is not None and decision.proposed_s < keeps * decision.current_s,
        )

    def _record(self, request: PlanRequest, proposal: Proposal, last: Plan, adopted: Plan | None = None) -> Actions:
        """Write a decision and the bound of its view, which is solved in the background, into the decision log."""
        self._busy = True
        view = proposal.view
        changes = adopted is not None and (adopted.training, adopted.codec) != (last.training, last.codec)
        record = DecisionRecord(
            proposal,
            request.policy or self.policy,
            reason="training" if changes else request.reason,
            after_round=self._group.last_round,
            last=last,
            adopted=adopted,
            estimates=self._maker.knowledge.estimates(view.at_s),
        )
        yield Background(partial(self._log.bound, view), partial(self._recorded, record))

    def _recorded(self, record: DecisionRecord, bound_s: float | None) -> Actions:
        self._log.record(record, bound_s)
        self._busy = False
        yield from ()

    def reconsider(self) -> None:
        """Consider the deferred requests again: a reconfiguration is over, or a member reaches others."""
        self._requests.restore_deferred()


def _propose(
    policy: Policy, dress: Dress, rules: SwapRules, question: PlanQuestion, processor: Callable[[], float]
) -> Proposal:
    """Return the proposal, or one without a plan if a plug-in policy raises an error of its own."""
    began_s = processor()
    try:
        with as_policy_errors(policy):
            return propose(policy, dress, rules, question, processor)
    except PolicyError as error:
        decision = Decision(False, str(error), None, math.inf)
        return Proposal(question.view, None, decision, question.predictor, seconds=processor() - began_s)
