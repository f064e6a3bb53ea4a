"""The maker of plans: the run's options for planning, the known network, and how members train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import fmean

from testbed.controller.knowledge.knowledge import Knowledge
from testbed.controller.model.membership import GroupState
from testbed.controller.model.spec import ControllerSpec, PlanningSpec
from testbed.controller.replanning.training import TrainingMonitor, TrainingQuestion
from testbed.plan import Plan, codec_bytes
from testbed.planning import Policy, PolicyError, View
from testbed.planning.conductor import SchemeCatalog
from testbed.planning.policies.given import GivenPlan
from testbed.planning.policy import check_plan, is_own
from testbed.planning.simulate import ELEMENT_BYTES, coded_parts, edges_of
from testbed.plugins import as_policy_errors

#: The newest rounds that the length of exchanges is taken from.
NEWEST = 3


class PlanMaker:
    """Makes views of the network among a group's members, and plans that the run can follow.

    Attributes:
        options: The run's options for planning.
        knowledge: The knowledge of the network.
        training: The monitor of training in runs whose plans say how members train; None in other runs.
        elastic: True if members may come and go.
    """

    def __init__(self, spec: ControllerSpec, options: PlanningSpec, group: GroupState) -> None:
        self.options = options
        self.knowledge = Knowledge(options.view)
        self.training = _training_monitor(spec, options.margin) if options.conducted else None
        self._group = group
        group.rounds.mixed = options.measured_bytes
        group.rounds.overlaps = options.covered > 0
        self.elastic = spec.elastic is not None
        self._rounds = spec.rounds

    @property
    def rounds_left(self) -> int:
        """The rounds left in the run, with the plan's number of steps a round if plans say how members train."""
        if self.training is not None:
            return self.training.rounds_left(self._group.plans.in_force)
        return self._rounds - (self._group.last_round or 0)  # a restarted controller has not counted the earlier rounds

    def training_question(self) -> TrainingQuestion | None:
        """Return the inputs of the next choice of how members train, or None if plans don't say it."""
        if self.training is None:
            return None
        plan, rounds = self._group.plans.plan, self._group.rounds
        newest = [its.seconds for its in rounds.complete[-NEWEST:] if its.epoch == plan.epoch]
        return self.training.question(newest, plan)

    def view(self, now: float, joins: str = "", whole: bool = False) -> View:
        """Return the known network among the present members, and the member that `joins` if one does.

        Unless it is to be `whole`, it has no edge between a member that joined and those that it could not reach then.
        """
        view = self.through(self.knowledge.view(now), self._group.plans.in_force)
        membership = self._group.membership
        names = membership.present | ({joins} if joins else set())
        view = view if whole else view.without(membership.apart)
        return view if names == set(view.names) else view.among(names)

    def through(self, view: View, plan: Plan | None) -> View:
        """Return the view with the bytes of a round.

        They are the model's as the plan's codec encodes them, if plans choose the scheme, or those of measured rounds.
        """
        among_all = plan is None or plan.period == 1  # less is sent in rounds inside groups
        if self.options.measured_bytes and among_all and (round_bytes := self._group.rounds.round_bytes):
            if plan is not None and plan.link_codecs:  # `simulate` reduces the bytes of such links itself
                parts = coded_parts(plan, [plan.whole])
                shares = [sum(tree.share for tree in plan.trees if edge in edges_of(tree)) for edge in parts]
                mean = fmean(parts.values(), shares)
                round_bytes = round(round_bytes * codec_bytes(plan.codec) / (ELEMENT_BYTES * mean))
            return replace(view, model_bytes=round_bytes)
        return view if self.training is None else self.training.through(view, plan)

    def plan(self, policy: Policy, view: View) -> Plan:
        """Return the policy's plan, completed for this run.

        Raises:
            PolicyError: The policy has no plan, or the run can't follow it.
        """
        with as_policy_errors(policy):
            plan = policy.plan(view)
        return self.dress_of(policy)(plan, view)

    def dress_of(self, policy: Policy) -> Callable[[Plan, View], Plan]:
        """Return `dress` for the plans of `policy`. Those of a plug-in may be anything, and are checked first."""
        return self.dress if is_own(policy) else partial(self._dress_checked, policy)

    def _dress_checked(self, policy: Policy, plan: Plan, view: View) -> Plan:
        check_plan(policy, view, plan)
        return self.dress(plan, view)

    def dress(self, plan: Plan, view: View) -> Plan:
        """Complete a policy's plan with the run's own options. Members continue to train as under the plan in force.

        Raises:
            PolicyError: The run can't follow the plan.
        """
        if plan.groups:
            self._check_groups(plan.policy or "this policy")
        dressed = self.options.dress(plan, view)
        if self.training is None:
            return dressed
        return self.training.dress(dressed, self._group.plans.in_force)

    def check_forced(self, policy: Policy) -> None:
        """Check that the run can follow the plans of a policy that a user asks for.

        Raises:
            PolicyError: The run is elastic and the policy makes groups, or a codec of a written plan is not the run's.
        """
        if policy.makes_groups:
            self._check_groups(policy.name)
        if isinstance(policy, GivenPlan):
            self.options.check_codecs(policy.written())

    def _check_groups(self, policy: str) -> None:
        """Raise PolicyError if the run, for which `policy` makes groups, is elastic."""
        if self.elastic:
            raise PolicyError(
                f"a plan of {policy} has groups, which elastic runs do not support; choose another policy, or a plan "
                "without groups",
                rule="groups",
            )

    def speeds(self, rates: dict[str, float]) -> dict[str, float]:
        """Return members' samples per second, divided by the number that their jobs declare; a job may declare none."""
        return {
            member: rate / declared
            for member, rate in rates.items()
            if (declared := self._group.jobs[member].samples_per_s)
        }

    def follow(self, options: PlanningSpec, now: float) -> None:
        """Use the options and the network of the run with one more member, which is not present yet."""
        self.options = options
        self.knowledge.redeclare(options.view.links, options.view.routes, now, options.view.members)


def _training_monitor(spec: ControllerSpec, margin: float) -> TrainingMonitor:
    from testbed.schemes import TRAITS  # loading all schemes takes 65 ms, and few runs choose among them

    job = next(iter(spec.jobs.values()))
    return TrainingMonitor(spec.rounds, margin, job, SchemeCatalog(TRAITS))
