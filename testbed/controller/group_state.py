"""What an all-reduce run is at, for all who decide about it: members, plans, rounds and the network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from testbed.controller.actions import Actions
from testbed.controller.clocks import Clocks
from testbed.controller.conducting import Conducting, bytes_through
from testbed.controller.epochs import Epochs
from testbed.controller.identity import Identities
from testbed.controller.knowledge import Knowledge
from testbed.controller.membership import AllReduceMembership
from testbed.controller.plan_history import PlanHistory
from testbed.controller.round_log import RoundLog
from testbed.controller.spec import ControllerSpec, PlanningSpec
from testbed.plan import Plan
from testbed.planning import Policy, PolicyError, View
from testbed.planning.conductor import FIRST, Candidate


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
        self.plans = PlanHistory(Epochs(out / "epochs.json"), clocks)
        self.rounds = RoundLog(self._expected)
        self.knowledge = Knowledge(planning.view)
        self.conducting = Conducting(spec.rounds, planning.margin) if planning.conducted else None
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
            return self.conducting.steps_left // self.candidate.steps
        return self._rounds - self.rounds.count

    @property
    def candidate(self) -> Candidate:
        """How members train where that is conducted, by the plan in force."""
        plan = self.plans.in_force
        return FIRST if plan is None or plan.training is None else Candidate.of(plan.training, plan.codec)

    def view(self, now: float, joins: str = "") -> View:
        """What is known of the network, as far as it is that of those who are there, and of one that `joins`."""
        view = self.knowledge.view(now)
        if self.conducting is not None:
            view = replace(view, model_bytes=bytes_through(self.candidate.codec, view.model_bytes, FIRST.codec))
        names = self.membership.present | ({joins} if joins else set())
        return view if names == set(view.names) else view.among(names)

    def plan(self, policy: Policy, view: View) -> Plan:
        """The policy's plan; PolicyError when there is none."""
        return self.dress(policy.plan(view), view)

    def dress(self, plan: Plan, view: View) -> Plan:
        """A policy's plan with what is not the policy's business; PolicyError when it is none for this run. Members go
        on to train as they do."""
        return self.dress_for(plan, view, self.candidate)

    def dress_for(self, plan: Plan, view: View, candidate: Candidate) -> Plan:
        """The same, for members that train otherwise where that is conducted."""
        if self._elastic and plan.groups:
            raise PolicyError(f"{plan.policy}: its plans have groups, and an elastic run has none")
        dressed = self.planning.dress(plan, view)
        if self.conducting is None:
            return dressed
        return replace(dressed, training=candidate.training, codec=candidate.codec)

    def speeds(self, rates: dict[str, float]) -> dict[str, float]:
        """Members' samples per second as parts of what their jobs declare, where those declare any."""
        return {
            member: rate / declared for member, rate in rates.items() if (declared := self.jobs[member].samples_per_s)
        }

    def abort(self, why: str) -> Actions:
        """Have those who are present say what they hold, and go on under another plan."""
        yield from self.membership.abort(self.plans.next_epoch(), why, self.clocks.monotonic())

    def _expected(self, epoch: int) -> frozenset[str]:
        """The members that report the rounds of an epoch."""
        found = self.plans.members(epoch)
        return self.membership.present if found is None else found
