"""The state of an all-reduce run, on which decisions are based: members, plans, rounds and the network."""

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
from testbed.controller.replanning.training import TrainingMonitor, TrainingQuestion, through_codec
from testbed.plan import Plan
from testbed.planning import Policy, PolicyError, View
from testbed.planning.conductor import SchemeCatalog

#: The newest rounds that the length of exchanges is taken from.
NEWEST = 3


class GroupState:
    """The members, plans, rounds and knowledge of the network of one run.

    Attributes:
        clocks: The run's clocks.
        phase: "waiting" until all members are present, "running", or "over".
        jobs: Each member's job.
        planning: The run's options for planning.
        membership: The present members.
        plans: The plan in force, a pending one, and earlier ones.
        rounds: The rounds that members reported.
        knowledge: The knowledge of the network.
        conducting: The monitor of training in runs whose plans say how members train; None in other runs.

    Args:
        spec: The run.
        planning: The run's options for planning.
        identities: The identities of members.
        out: The run's directory.
        clocks: The run's clocks.
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
        self.conducting = _training_monitor(spec, planning.margin) if planning.conducted else None
        self._elastic = spec.elastic is not None
        self._rounds = spec.rounds

    @property
    def last_round(self) -> int | None:
        """The number of the last completed round, or None before the first."""
        return self.rounds.last.number if self.rounds.last else None

    @property
    def rounds_left(self) -> int:
        """The rounds left in the run, with the plan's number of steps a round if plans say how members train."""
        if self.conducting is not None:
            return self.conducting.rounds_left(self.plans.in_force)
        return self._rounds - self.rounds.count

    def training_question(self) -> TrainingQuestion | None:
        """Return the inputs of the next choice of how members train, or None if plans don't say it."""
        if self.conducting is None:
            return None
        epoch = self.plans.plan.epoch
        newest = [its.seconds for its in self.rounds.complete[-NEWEST:] if its.epoch == epoch]
        return self.conducting.question(newest, self.rounds.under(epoch))

    def view(self, now: float, joins: str = "") -> View:
        """Return the known network among the present members, and the member that `joins` if one does."""
        view = self.through(self.knowledge.view(now), self.plans.in_force)
        names = self.membership.present | ({joins} if joins else set())
        return view if names == set(view.names) else view.among(names)

    def through(self, view: View, plan: Plan | None) -> View:
        """Return the view with the bytes of the plan's codec, if plans say how members train."""
        return view if self.conducting is None else through_codec(view, plan)

    def plan(self, policy: Policy, view: View) -> Plan:
        """Return the policy's plan, completed for this run.

        Raises:
            PolicyError: the policy has no plan, or the run can't follow it.
        """
        return self.dress(policy.plan(view), view)

    def dress(self, plan: Plan, view: View) -> Plan:
        """Complete a policy's plan with the run's own options. Members train on as under the plan in force.

        Raises:
            PolicyError: the run can't follow the plan.
        """
        if self._elastic and plan.groups:
            raise PolicyError(
                f"{plan.policy} makes plans with groups, which elastic runs do not support; choose another policy"
            )
        dressed = self.planning.dress(plan, view)
        if self.conducting is None:
            return dressed
        return self.conducting.dress(dressed, self.plans.in_force)

    def speeds(self, rates: dict[str, float]) -> dict[str, float]:
        """Return members' samples per second as parts of those that their jobs declare, if they declare any."""
        return {
            member: rate / declared for member, rate in rates.items() if (declared := self.jobs[member].samples_per_s)
        }

    def follow(self, spec: ControllerSpec, now: float) -> None:
        """Take the spec of a run that has one more member, which is not present yet."""
        assert spec.planning is not None
        self.jobs, self.planning = spec.jobs, spec.planning
        view = spec.planning.view
        self.knowledge.redeclare(view.links, view.routes, now, view.members)

    def abort(self, why: str) -> Actions:
        """Abort the current round: the present members report their state, and continue under another plan."""
        yield from self.membership.abort(self.plans.next_epoch(), why, self.clocks.monotonic())

    def _expected(self, epoch: int) -> frozenset[str]:
        """Return the members that report the rounds of an epoch."""
        found = self.plans.members(epoch)
        return self.membership.present if found is None else found


def _training_monitor(spec: ControllerSpec, margin: float) -> TrainingMonitor:
    from testbed.schemes import TRAITS  # loading all schemes takes 65 ms, and few runs choose among them

    job = next(iter(spec.jobs.values()))
    return TrainingMonitor(spec.rounds, margin, job, SchemeCatalog(TRAITS))
