"""What hybrid synchronization is told of an experiment: local steps by speed, and the cpn policy's figures. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from testbed.planning import View, make_policy
from testbed.planning.graphs import Graph
from testbed.schemes.hierarchical import HierarchicalOptions
from testbed.schemes.hybrid import HybridOptions
from testbed.schemes.staggered import StaggeredOptions
from testbed.spec.experiment import ExperimentFile
from testbed.spec.topology import Worker

#: The policy that plans with computing power, and makes groups itself.
CPN = "cpn"


def steps_of(workers: Sequence[Worker], every: int) -> tuple[int, ...]:
    """Each worker's local steps to a round: `every` at the fastest, the others in proportion, so that all are done at
    about the same time; at least one."""
    fastest = max(worker.speed for worker in workers)
    return tuple(max(1, round(every * worker.speed / fastest)) for worker in workers)


def options_of(spec: ExperimentFile) -> dict[str, Any]:
    """The policy's options: the cpn policy knows the experiment's steps unless it is told others, and whether groups
    have periods of their own: where rounds are a session's all groups have one."""
    given = dict(spec.sync.options)
    if spec.sync.policy != CPN:
        return given
    own = spec.sync.own
    temporal = isinstance(own, StaggeredOptions)
    overlap = isinstance(own, HybridOptions) and own.overlap
    known: dict[str, Any] = {"every": own.local_steps, "temporal": temporal, "overlap": overlap}
    if temporal:
        known["groups"] = "sites"  # what members of a group send each other does not go through the codec
    if spec.compute.step_time:
        known["step_s"] = spec.compute.step_time
    return known | given


def period_of(spec: ExperimentFile) -> int:
    """Every how many rounds all synchronize, where the experiment says so and not the policy."""
    match spec.sync.own:
        case HierarchicalOptions(period=period) | HybridOptions(period=period) if spec.sync.policy != CPN:
            return period
    return 1


def rules_of(spec: ExperimentFile, own: StaggeredOptions, known: View) -> dict[str, Any]:
    """What HybridRules are made of, where groups have periods of their own: as the policy plans for the known network.
    PolicyError when it has no plan."""
    policy = make_policy(CPN, options_of(spec))
    plan = policy.plan(known)
    groups = policy.explain(known, plan)["groups"]
    return {
        "teams": [
            {
                "members": group["members"],
                "owners": group["leaders"],
                "period": group["period"],
                "phase": group["phase"],
            }
            for group in groups
        ],
        "steps": dict(plan.steps),
        "staleness": own.staleness or None,
        "normalise": own.normalise,
        "prox": own.prox,
        "outer": {"learning_rate": own.outer.learning_rate, "momentum": own.outer.momentum},
        "codec": spec.sync.codec,
    }


def graph_of(rules: Mapping[str, Any]) -> Graph:
    """Who sends to whom under such rules: a group's members to its owners, all owners to the holders of the global
    model, which are every group's first owner; and back."""
    teams = rules["teams"]
    roots = [team["owners"][0] for team in teams]
    pairs = {(member, owner) for team in teams for owner in team["owners"] for member in (*team["members"], *roots)}
    both = {*pairs, *((owner, member) for member, owner in pairs)}
    return Graph(tuple(rules["steps"]), frozenset((one, other) for one, other in both if one != other))
