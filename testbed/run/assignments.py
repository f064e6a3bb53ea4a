"""The workers' assignments under the experiment's scheme, and the check of its policy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from testbed.compiler import CompilerError
from testbed.controller.model.spec import GossipGraph, PlanningSpec
from testbed.emulation.network.routing import Routes
from testbed.plan import Plan
from testbed.planning import PolicyError, View
from testbed.planning.events import load as load_simulator
from testbed.planning.graphs import Graph, GraphError, make_graph
from testbed.planning.policies.given import GivenPlan
from testbed.planning.policy import check_plan
from testbed.plugins import policy_named, refusal
from testbed.run.errors import CannotRun
from testbed.run.view import declared_view, slowed
from testbed.schemes.assignment import Assignment, GossipAssignment, Setting
from testbed.schemes.options import Misfit
from testbed.spec.errors import Fault, SpecError
from testbed.spec.experiment import Experiment, ExperimentFile
from testbed.spec.sync import SyncSection

#: The policy that plans with the workers' computing power, and makes groups itself.
CPN = "cpn"


def policy_options(spec: ExperimentFile) -> dict[str, Any]:
    """Return the policy's options; cpn also gets the scheme's, and the declared step time, unless the file has them."""
    given = dict(spec.sync.options)
    if spec.sync.policy != CPN:
        return given
    step_s = {"step_s": spec.compute.step_time} if spec.compute.step_time else {}
    return {**spec.sync.own.for_planning, **step_s, **given}


def site_period(spec: ExperimentFile) -> int:
    """Return the number of rounds from one global synchronization to the next; 1 if the policy makes the groups."""
    return 1 if spec.sync.policy == CPN else spec.sync.own.site_period


def check_policy(experiment: Experiment, routes: Routes | None = None) -> None:
    """Check the experiment's policy by planning once for the declared network, before anything is built.

    An experiment whose own command trains has no policy to check. `routes` are the network's; None computes them.

    Raises:
        SpecError: The policy does not exist, refuses its options, or has no plan that fits the declared network, or
            plans groups for an elastic run. Or its options have a written plan with other members or codecs than the
            run's, or by which the scheme can't train.
        CannotRun: This machine has no compiler for the simulator.
    """
    if experiment.spec.program is not None:
        return
    try:
        load_simulator()
    except CompilerError as error:
        raise CannotRun(str(error)) from None
    sync = experiment.spec.sync
    known = _declared(experiment, routes)
    try:
        policy = policy_named(sync.policy, policy_options(experiment.spec))
    except (PolicyError, TypeError, ValueError) as error:
        raise _refused(experiment, str(error)) from None
    try:
        policy.check(known)
        plan = policy.plan(known)
        check_plan(policy, known, plan)
    except Exception as error:
        raise _refused(experiment, refusal(policy, error)) from None
    if experiment.spec.elastic is not None and sync.scheme.exchange == "all-reduce" and plan.groups:
        rule = f"{sync.policy} plans rounds inside groups, which elastic runs do not support"
        raise SpecError(experiment.file, [Fault("sync.policy", rule, "a policy without groups, or no `elastic`")])
    if isinstance(policy, GivenPlan):
        _check_document(experiment, known, policy.written())
    assignment_of(experiment)


def check_written(sync: SyncSection, plan: Plan) -> None:
    """Check that members that all-reduce can train by a plan that a user wrote.

    Raises:
        Misfit: Their scheme does not take the plan's groups or codecs of links; names the field of the plan.
    """
    for edge, codec in plan.link_codecs.items():
        try:
            sync.own.check_plan("", {}, codec)
        except Misfit as error:
            raise Misfit(f"link_codecs.{edge}", error.problem, error.remedy) from None
    if plan.groups and sync.own.among_all:
        raise Misfit("groups", "the plan has rounds inside groups, and this scheme has none", "a plan without them")


def _check_document(experiment: Experiment, known: View, plan: Plan) -> None:
    """Raise SpecError if members can't train by a plan that the experiment's file has, or a codec is not the run's."""
    sync = experiment.spec.sync
    planning = PlanningSpec(
        view=known,
        policy=sync.policy,
        options=policy_options(experiment.spec),
        codec=sync.codec,
        link_codecs=experiment.link_codecs_among(experiment.topology),
        conducted=sync.scheme.conducted,
    )
    try:
        if sync.scheme.exchange == "all-reduce":
            check_written(sync, plan)
        planning.check_codecs(plan)
    except Misfit as error:
        fault = Fault(f"sync.options.document.{error.name}", error.problem, error.remedy)
        raise SpecError(experiment.file, [fault]) from None
    except PolicyError as error:
        at = ".".join(filter(None, ("sync.options.document", error.field, error.link)))
        rule, _, _ = str(error).partition(": ")
        remedy = f"this run's codec, or the plan's codec in `sync.{error.field}`"
        raise SpecError(experiment.file, [Fault(at, rule, remedy)]) from None


def _declared(experiment: Experiment, routes: Routes | None = None) -> View:
    spec = experiment.spec
    known = declared_view(experiment.topology, spec.round_bytes, routes)
    return replace(known, members=slowed(known.members, spec.compute.stragglers))


def _refused(experiment: Experiment, why: str) -> SpecError:
    fault = Fault("sync.policy", why, "a policy and options as docs/policies.md lists them, or a file: ./mine.py")
    return SpecError(experiment.file, [fault])


def assignment_of(experiment: Experiment) -> Assignment:
    """Return the members' assignments under the experiment's scheme.

    Raises:
        SpecError: The scheme does not accept the workers, its graph, or the graph of an event.
    """
    spec = experiment.spec
    if not spec.sync.scheme.assigns:
        return Assignment()
    known = _declared(experiment)
    setting = Setting(view=known, policy_options=policy_options(spec), codec=spec.sync.codec)
    faults: list[Fault] = []
    with _collecting(faults, "sync.graph", "another graph, or another number of workers"):
        assignment = spec.sync.scheme.assign(spec.sync.own, setting)
    if faults:
        raise SpecError(experiment.file, faults)
    if not isinstance(assignment, GossipAssignment):
        return assignment
    with _collecting(faults, "sync.graph", "another graph"):
        _check(experiment, assignment.graph)
    for number, event in enumerate(spec.events):
        if event.graph is not None:
            with _collecting(faults, f"events.{number}.graph", "another graph"):
                graph = make_graph(event.graph, assignment.graph.members)
                assignment.weigh(graph)
                _check(experiment, graph)
    if faults:
        raise SpecError(experiment.file, faults)
    return assignment


def graph_of(experiment: Experiment, assignment: GossipAssignment) -> GossipGraph:
    """Return the gossip graph in the controller's form."""
    sync = experiment.spec.sync
    return GossipGraph(
        edges=tuple(sorted(assignment.graph.edges)),
        leaders=assignment.graph.members if assignment.sites else (),
        bounded=sync.scheme.synchronous,
        survives=sync.scheme.survives,
        fixed=not sync.scheme.regraphs,
        weights=assignment.weighing,
        **sync.own.gap,
    )


def _check(experiment: Experiment, graph: Graph) -> None:
    experiment.spec.sync.own.check_graph(min(len(graph.sources(member)) for member in graph.members))


@contextmanager
def _collecting(faults: list[Fault], field: str, remedy: str) -> Iterator[None]:
    """Append an error of the body to `faults`: a graph's error under `field`, an option's under its own name."""
    try:
        yield
    except GraphError as error:
        rule, _, instead = str(error).partition("; ")
        faults.append(Fault(field, rule, instead or remedy))
    except Misfit as error:
        faults.append(Fault(f"sync.{error.name}", error.problem, error.remedy))
    except PolicyError as error:
        faults.append(Fault("sync.policy", str(error), "a policy and options as docs/policies.md lists them"))
