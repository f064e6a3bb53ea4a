"""What an all-reduce run is at, for all who decide about it: members, plans, rounds and the network."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from testbed.controller.knowledge.knowledge import Knowledge
from testbed.controller.model.actions import Actions
from testbed.controller.model.clocks import Clocks
from testbed.controller.model.identity import Identities
from testbed.controller.model.membership import AllReduceMembership
from testbed.controller.model.plan_history import PlanHistory
from testbed.controller.model.round_log import RoundLog
from testbed.controller.model.spec import ControllerSpec, PlanningSpec
from testbed.controller.replanning.conducting import Conducting, TrainingQuestion, candidate_of, through_codec
from testbed.plan import Plan
from testbed.planning import Policy, PolicyError, View

#: The newest rounds that say how long exchanges take.
NEWEST = 3


class GroupState:
    """The members, the plans in force and to come, the rounds that are over, and what is known of the network.

    `phase` says whether members are there already, and whether the run is over.
    """

    def __init__(
        self, spec: ControllerSpec, planning: PlanningSpec, identities: Identities, out: Path, clocks: Clocks
    ) -> None:
        self.clocks = clocks
        self.phase: Literal["waiting", "running", "over"] = "waiting"
        self.jobs = spec.jobs
        self.planning = planning
        self.membership = AllReduceMembership(identities, spec.elastic)
        self.plans = PlanHistory(out, clocks)
        self.rounds = RoundLog(self._expected)
        self.knowledge = Knowledge(planning.view)
        job = next(iter(spec.jobs.values()))
        self.conducting = Conducting(spec.rounds, planning.margin, job) if planning.conducted else None
        self._elastic = spec.elastic is not None
        self._rounds = spec.rounds

    @property
    def last_round(self) -> int | None:
        """The newest that all have reported."""
        return self.rounds.last.number if self.rounds.last else None

    @property
    def rounds_left(self) -> int:
        """Rounds still to come, as the jobs have it, at the pace of the plan in force."""
        if self.conducting is not None:
            return self.conducting.steps_left // candidate_of(self.plans.in_force).steps
        return self._rounds - self.rounds.count

    def training_question(self) -> TrainingQuestion | None:
        """What there is to consider of how members train; None where that is not conducted."""
        if self.conducting is None:
            return None
        epoch = self.plans.plan.epoch
        newest = [its.seconds for its in self.rounds.complete[-NEWEST:] if its.epoch == epoch]
        return self.conducting.question(newest, self.rounds.under(epoch))

    def view(self, now: float, joins: str = "") -> View:
        """What is known of the network, as far as it is that of those who are there, and of one that `joins`."""
        view = self.through(self.knowledge.view(now), self.plans.in_force)
        names = self.membership.present | ({joins} if joins else set())
        return view if names == set(view.names) else view.among(names)

    def through(self, view: View, plan: Plan | None) -> View:
        """Return a view whose model has the bytes of a plan's codec, where plans choose it."""
        return view if self.conducting is None else through_codec(view, plan)

    def plan(self, policy: Policy, view: View) -> Plan:
        """The policy's plan; PolicyError when there is none."""
        return self.dress(policy.plan(view), view)

    def dress(self, plan: Plan, view: View) -> Plan:
        """A policy's plan with what is not the policy's business; PolicyError when it is none for this run. Members go
        on to train as they do."""
        if self._elastic and plan.groups:
            raise PolicyError(f"{plan.policy}: its plans have groups, and an elastic run has none")
        dressed = self.planning.dress(plan, view)
        if self.conducting is None:
            return dressed
        return self.conducting.dress(dressed, self.plans.in_force)

    def speeds(self, rates: dict[str, float]) -> dict[str, float]:
        """Members' samples per second as parts of what their jobs declare, where those declare any."""
        return {
            member: rate / declared for member, rate in rates.items() if (declared := self.jobs[member].samples_per_s)
        }

    def follow(self, spec: ControllerSpec, now: float) -> None:
        """There is a member more, which is not present yet."""
        assert spec.planning is not None
        self.jobs, self.planning = spec.jobs, spec.planning
        view = spec.planning.view
        self.knowledge.redeclare(view.links, view.routes, now, view.members)

    def abort(self, why: str) -> Actions:
        """Have those who are present say what they hold, and go on under another plan."""
        yield from self.membership.abort(self.plans.next_epoch(), why, self.clocks.monotonic())

    def _expected(self, epoch: int) -> frozenset[str]:
        """The members that report the rounds of an epoch."""
        found = self.plans.members(epoch)
        return self.membership.present if found is None else found
