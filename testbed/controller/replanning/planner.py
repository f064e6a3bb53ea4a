"""Plans: considers one at a time, by what is known of the network, and has those that it adopts put in force.

a request --view, standing--> propose (beside all else) --adopt?--> prepare
    `---- while a swap or a reconfiguration is under way: deferred      all of it, with why --> DecisionLog
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from testbed.controller.knowledge.network_monitor import NetworkMonitor
from testbed.controller.model.actions import Actions, Announce, Background
from testbed.controller.replanning.allowance import Allowance
from testbed.controller.replanning.decision import Decision, Rules
from testbed.controller.replanning.decision_log import DecisionLog, DecisionRecord
from testbed.controller.replanning.group_state import GroupState
from testbed.controller.replanning.plan_requests import PlanRequest, PlanRequests
from testbed.controller.replanning.proposal import Proposal, Question, propose
from testbed.controller.replanning.track_record import TrackRecord
from testbed.plan import Plan
from testbed.planning import Pair, PhysicalLink, Policy, predict

log = logging.getLogger(__name__)

#: A link that fell to less than this part is reason enough to look for another plan in the midst of a round; of others
#: it must take longer than those before it.
HALVED = 0.5


class Planner:
    """Looks for better plans: after rounds, where a link fell, and where it is asked to.

    Attributes:
        policy: The policy that makes the plans.
        monitor: Measures the network, which the planner goes by.

    Args:
        group: The members, their plans, their rounds and the network.
        requests: The reasons to consider a plan that are still open.
        prepare: Has the members go over to a plan: given the plan, the reason, and the member that comes with it or "".
        out: The run's directory.
    """

    def __init__(
        self, group: GroupState, requests: PlanRequests, prepare: Callable[[Plan, str, str], Actions], out: Path
    ) -> None:
        self.policy = group.planning.make_policy()
        self._group = group
        self._requests = requests
        self._prepare = prepare
        self._log = DecisionLog(out)
        self.monitor = NetworkMonitor(group.knowledge, group.rounds, group.membership, self._log.estimated)
        self._track = TrackRecord(group)
        self._allowance = Allowance()
        self._declarations = 0
        self._considered = -math.inf  # on the monotonic clock
        self._busy = False

    @property
    def considering(self) -> bool:
        """Whether a plan is being considered."""
        return self._busy or not self._requests.empty

    def start(self) -> None:
        """Make the first plan. PolicyError when the first view has none."""
        view = self._group.view(self._group.clocks.unix())
        plan = self._group.plan(self.policy, view)
        self._group.plans.begin(plan)
        self._group.plans.record.store(plan)
        decision = Decision(True, "the first plan", None, predict(plan, view).seconds)
        first = DecisionRecord(view, self.policy, decision, "period", adopted=plan)
        self._log.record(first, self._log.bound(view))

    def close(self) -> None:
        """Nothing is put on record any more."""
        self._log.close()

    # Reasons to consider a plan

    def change_network(self, links: Mapping[str, PhysicalLink], routes: Mapping[Pair, tuple[str, ...]]) -> None:
        """The underlay is another one now: look at it at once. ViewError when it contradicts itself."""
        self._group.knowledge.redeclare(links, routes, self._group.clocks.unix())
        self.monitor.redeclare()
        self._track.redeclare()
        self._declarations += 1
        self._requests.ask(PlanRequest("network"))

    def force(self, policy: Policy) -> None:
        """Go by `policy` from now on, and put its plan in force whatever it saves. PolicyError when it is none for
        this run."""
        policy.check(self._group.view(self._group.clocks.unix()))
        self.policy = policy
        self._requests.ask(PlanRequest("forced", policy))

    def comes(self, member: str) -> None:
        """A member wants to take part from now on."""
        self._requests.ask(PlanRequest("member", joins=member))

    def round_over(self, finished_s: float, fell: bool) -> Actions:
        """Links were measured by a round that is over. Where one `fell`, or after a while, it is time to look again."""
        now = self._group.clocks.unix()
        self._track.round_over()
        if fell:
            self._track.link_fell()
        yield from self._probes(now)
        if fell or self._group.clocks.monotonic() - self._considered >= self._group.planning.period_s:
            self._ask_if_affordable(finished_s, urgent=fell)

    def measured(self) -> Actions:
        """Links were measured in the midst of a round. Where one fell another plan is looked for at once: what members
        come to hold in the midst of a round they may go by in the next."""
        now = self._group.clocks.unix()
        slow = self._track.standing(now).slow
        yield from self._probes(now, hurry=slow)
        fell = self._group.knowledge.fell(now)
        if fell and (min(fell.values()) < HALVED or slow):
            self._track.link_fell()
            self._ask_if_affordable(now, urgent=True)

    def _probes(self, now: float, hurry: bool = False) -> Actions:
        """Have members probe, if there will be another plan to profit from it."""
        planning = self._group.planning
        if not planning.hold and self._group.rounds_left >= planning.dwell_rounds:
            yield from self.monitor.probes(now, self._group.clocks.monotonic(), hurry)

    def _ask_if_affordable(self, now: float, urgent: bool) -> None:
        """Have a plan considered, if none is, the one in force may be left, and rounds remain to profit from that."""
        planning = self._group.planning
        if self._group.plans.pending is not None or self.considering:
            return
        if planning.hold or self._group.rounds_left < planning.dwell_rounds:
            return
        standing = self._track.standing(self._group.clocks.unix())
        if standing.settled(planning.dwell_rounds) and self._allowance.has_some(now, urgent):
            self._requests.ask(PlanRequest("period"))

    # Considering

    def proceed(self) -> Actions:
        """Consider what was asked for, one request at a time."""
        group = self._group
        while not self._busy and not self._requests.empty:
            request = self._requests.take()
            if request.reason == "dropped":
                decision = Decision(False, request.why, None, float("inf"))
                dropped = Proposal(group.view(self._group.clocks.unix()), None, decision, self._track.foresight, None)
                yield from self._record(request, dropped, group.plans.plan)
            elif group.plans.pending is not None or group.membership.reconfiguration is not None:
                self._requests.defer(request)
            elif group.phase != "over" and request.joins not in group.membership.present:
                yield from self._think(request)

    def _think(self, request: PlanRequest) -> Actions:
        """See what comes of a request, by the view of the newest declaration."""
        self._busy = True
        now, self._considered = self._group.clocks.unix(), self._group.clocks.monotonic()
        planning, knowledge, rounds = self._group.planning, self._group.knowledge, self._group.rounds
        current, conducting = self._group.plans.plan, self._group.conducting
        compute_s = (
            conducting.compute_s(current.training.local_steps if current.training else 1)
            if conducting
            else rounds.compute_s()
        )
        self._track.keep(compute_s)
        past = self._track.past
        if conducting is not None:  # trees come back, and what members did then does not
            past = tuple(replace(plan, training=current.training, codec=current.codec) for plan in past)
        question = Question(
            view=self._group.view(now, request.joins),
            doubts=knowledge.doubts(now),
            current=current,
            past=past,
            standing=self._track.standing(now),
            foresight=replace(self._track.foresight, compute_s=compute_s),
            lessons=self._track.lessons(now),
            network_changed=request.reason == "network",
            anyway=f"{request.joins} comes" if request.joins else "forced" if request.reason == "forced" else "",
            training=self._group.training_question() if request.reason in ("period", "network") else None,
        )
        rules = Rules(1.0 if planning.hold else planning.margin, planning.dwell_rounds)  # nothing saves all of a round
        work = partial(
            propose,
            request.policy or self.policy,
            self._group.dress,
            rules,
            question,
            self._group.clocks.processor,
        )
        asked = (request, question.current, self._declarations)
        yield Background(work, partial(self._thought, *asked))

    def _thought(self, request: PlanRequest, last: Plan, declarations: int, proposal: Proposal) -> Actions:
        """Adopt what was proposed in place of the `last` plan, if it is worth that."""
        group = self._group
        if declarations != self._declarations:  # what was thought of is of no use on another network
            yield from self._think(request)
            return
        names = group.membership.present | ({request.joins} - {""})
        if group.membership.reconfiguration is not None or set(proposal.view.names) != names:
            self._busy = False
            self._requests.ask(request)  # a member was lost meanwhile, and that may be recovered from already
            return
        self._track.foresight = proposal.foresight
        self._allowance.spend(proposal.seconds)
        adopted = None
        if proposal.plan is None:
            log.warning("no other plan: %s", proposal.decision.why)
        elif proposal.decision.adopt and group.phase != "over":
            adopted = self._numbered(proposal.plan)
            of_rounds = (request.policy or self.policy).measure is None and adopted.training == last.training
            self._track.adopted(adopted, last, proposal.decision, request, of_rounds)
            yield from self._adopt(adopted, request, proposal.decision)
        yield from self._record(request, proposal, last, adopted)

    def _numbered(self, plan: Plan) -> Plan:
        """The plan under an epoch of its own; until members are there it takes the place of the first plan."""
        plans = self._group.plans
        return plan.with_epoch(plans.next_epoch() if self._group.phase == "running" else plans.plan.epoch)

    def _adopt(self, plan: Plan, request: PlanRequest, decision: Decision) -> Actions:
        """Have the members go over to a plan; until they are there it is simply the first one."""
        reason = request.reason if request.policy else f"{request.reason}: {decision.why}"
        self._group.plans.record.store(plan)
        log.info("epoch %d: %s (%s)", plan.epoch, plan.policy, reason)
        if self._group.phase == "running":
            yield from self._prepare(plan, reason, request.joins)
        else:
            self._group.plans.begin(plan)
        yield Announce()

    def _record(self, request: PlanRequest, proposal: Proposal, last: Plan, adopted: Plan | None = None) -> Actions:
        """Put on record what was decided by a view while `last` was in force."""
        self._busy = True
        view, policy = proposal.view, request.policy or self.policy
        correction, spread = proposal.foresight.correction(last)
        changes = adopted is not None and (adopted.training, adopted.codec) != (last.training, last.codec)
        record = DecisionRecord(
            view=view,
            policy=policy,
            decision=proposal.decision,
            reason="training" if changes else request.reason,
            after_round=self._group.last_round,
            last=last,
            adopted=adopted,
            choice=proposal.choice,
            estimates=self._group.knowledge.estimates(view.at_s),
            correction=(math.exp(correction), spread),
            training=proposal.training,
            seconds=proposal.seconds,
        )
        yield Background(partial(self._log.bound, view), partial(self._recorded, record))

    def _recorded(self, record: DecisionRecord, bound_s: float | None) -> Actions:
        self._log.record(record, bound_s)
        self._busy = False
        yield from ()

    def recovered(self, plan: Plan, why: str) -> None:
        """The plan is in force: those who are left had nothing to agree on."""
        self._group.plans.record.store(plan)
        self._group.plans.resume(plan, why, self._group.last_round or 0)
        self._requests.ask_deferred()
