"""The CPN framework's hybrid in which each group has a period and a phase of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from testbed.schemes.assignment import GossipAssignment, Setting
from testbed.schemes.options import NESTEROV, LocalSteps, Misfit, OuterOptions, limited
from testbed.schemes.scheme import Scheme
from testbed.schemes.training import GossipTraining
from testbed.sync.gossip.effects import Participant

if TYPE_CHECKING:
    from testbed.planning.graphs import Graph

#: Codecs whose result depends on no other element of a chunk, and that keep no residual.
CODECS = ("fp32", "fp16", "bf16")


@dataclass(frozen=True)
class StaggeredOptions(LocalSteps):
    """Options of staggered groups."""

    #: The outer optimizer, which applies the members' mean change to the model.
    outer: OuterOptions = NESTEROV
    #: The fraction by which each step returns to the parameters at the round's begin: ημ in FedProx.
    prox: float = limited(0.0, ge=0, lt=1)
    #: Divide each member's change by the work behind it (FedNova).
    normalise: bool = True
    #: Rounds by which an exchange may be overdue before other groups wait for it; 0: groups exchange synchronously.
    staleness: int = limited(0, ge=0, le=10_000)

    @property
    def for_planning(self) -> Mapping[str, Any]:
        """The options of any scheme, with a period of its own for each group, and sites as groups."""
        # The codec applies between groups, not to what members of a group send each other.
        return {**super().for_planning, "temporal": True, "groups": "sites"}

    def check_plan(self, policy: str, policy_options: Mapping[str, Any], codec: str) -> None:
        """Raise Misfit unless the policy is `cpn` with options that fit, and the codec is one for whole parameters."""
        if policy != "cpn":
            raise Misfit("policy", f"{policy} plans no periods for single groups", "`policy: cpn`")
        if codec not in CODECS:
            raise Misfit("codec", f"{codec} is for changes; here parameters travel", " or ".join(CODECS))
        if policy_options.get("codecs"):
            raise Misfit("options.codecs", "all members use one codec here", "`codec: fp16` in its place")
        if policy_options.get("spatial") == "spread":
            raise Misfit("options.spatial", "leaders have no trees here", "leader or sharded")
        if policy_options.get("overlap"):
            raise Misfit("options.overlap", "exchanges do not overlap steps here", "leave it out")


SCHEME = Scheme(
    name="staggered",
    options=StaggeredOptions,
    exchange="gossip",
    planned=True,
    synchronous=False,
    source="the CPN framework, JICN 2025, 10.64509/jicn.12.39, by our reading: redistribution in time",
)


def assign(options: StaggeredOptions, setting: Setting) -> GossipAssignment:
    """Make groups, with their periods and phases, as the cpn policy plans them for the declared network.

    Raises:
        PolicyError: The policy has no plan.
    """
    groups = _rules(options, setting)
    first = setting.view.names[0]
    home = next(team for team in groups["teams"] if first in team["members"])
    return GossipAssignment(
        protocol="staggered",
        graph=graph_of_teams(groups),
        rules=groups,
        steps=groups["steps"],
        evaluators={first: (home["period"], home["phase"])},
        groups=groups,
    )


def _rules(options: StaggeredOptions, setting: Setting) -> dict[str, Any]:
    """Return the plain values that StaggeredRules.from_json reads."""
    from testbed.planning import make_policy

    policy = make_policy("cpn", setting.policy_options)
    plan = policy.plan(setting.view)
    return {
        "teams": [
            {
                "members": group["members"],
                "owners": group["leaders"],
                "period": group["period"],
                "phase": group["phase"],
            }
            for group in policy.explain(setting.view, plan)["groups"]
        ],
        "steps": dict(plan.steps),
        "staleness": options.staleness or None,
        "normalise": options.normalise,
        "prox": options.prox,
        "outer": asdict(options.outer),
        "codec": setting.codec,
    }


def graph_of_teams(rules: Mapping[str, Any]) -> Graph:
    """Return the graph of the rules' teams.

    A group's members and its owners are neighbours, and so are all owners and the holders of the global model, which
    are every group's first owner.
    """
    from testbed.planning.graphs import Graph

    teams = rules["teams"]
    roots = [team["owners"][0] for team in teams]
    pairs = {(member, owner) for team in teams for owner in team["owners"] for member in (*team["members"], *roots)}
    return Graph.undirected(tuple(rules["steps"]), [(one, other) for one, other in pairs if one != other])


def build(options: StaggeredOptions, training: GossipTraining) -> Participant:
    """Return the staggered participant of one member. Where no samples are given, all members count alike."""
    from testbed.schemes.staggered.member import StaggeredMember
    from testbed.schemes.staggered.rules import StaggeredRules

    samples = training.samples or [1.0] * len(training.members)
    counted = dict(zip(training.members, samples, strict=True))
    rules = StaggeredRules.from_json(training.node.rules, training.iterations, counted)
    return StaggeredMember(training.name, rules, training.parameters)
