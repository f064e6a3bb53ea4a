"""What a controller is started with: one JSON file, written by whoever starts it."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from math import inf
from pathlib import Path
from typing import Annotated, Any

from msgspec.structs import asdict
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator, field_validator, model_validator

from testbed.plan import PLAIN_CODEC, Plan
from testbed.planning import Pair, Policy, View
from testbed.planning.fastest import with_site_groups
from testbed.planning.graphs import Graph, GraphError, Weighing, Weights, gap_bounds, weigh
from testbed.plugins import policy_named
from testbed.protocol import Job
from testbed.schema import check_name


def _view(value: Any) -> View:
    return value if isinstance(value, View) else View.from_json(value)


def _job(value: Any) -> Job:
    return value if isinstance(value, Job) else Job.from_json(value)


def _job_json(job: Job) -> dict[str, Any]:
    return asdict(job)


class Elasticity(BaseModel):
    """Members may go and come while others train, as long as `quorum` of them are left.

    A member that does not renew its lease for `lease_s` is gone. Members that gossip have no leases: one that hangs up
    is gone.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    quorum: int = Field(ge=1)
    lease_s: float = Field(default=5.0, gt=0)


class GossipGraph(BaseModel):
    """The graph over which members gossip, and the rules that bound how far they get apart.

    Unless it is `bounded` nothing here does: members exchange whenever they like, or by their protocol's own rules.
    `survives`: when one dies the others go on, and, unless it is `fixed`, all may go over to another graph (Hop).
    `weights` are those that its members average by. Where `leaders` are named, only they stand in the graph, each for
    its site; the others follow.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    edges: tuple[tuple[str, str], ...]
    leaders: tuple[str, ...] = ()
    bounded: bool = True
    survives: bool = False
    fixed: bool = False
    weights: Weighing = "uniform"
    max_ig: int | None = None
    backup: int = 0
    staleness: int = 0
    notify_ack: bool = False

    def without(self, gone: str, members: tuple[str, ...]) -> GossipGraph:
        """What is left when one of `members` has died; GraphError when that is no graph over which others agree."""
        if gone not in self.standing(members):
            return self
        if self.leaders:
            raise GraphError(f"{gone} stood for its site; what the site's workers learn reaches nobody any more")
        left = Graph(members, frozenset(self.edges)).without(gone)
        if len(left.members) < 2:
            raise GraphError(f"only {', '.join(left.members)} is left; nobody to train with")
        return self.model_copy(update={"edges": tuple(sorted(left.edges))})

    def standing(self, members: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the members that stand in the graph."""
        return tuple(member for member in members if member in self.leaders) if self.leaders else members

    def weigh(self, graph: Graph) -> Weights:
        """What each of a graph's members averages by; GraphError when its weights are not for such a graph."""
        return weigh(graph, self.weights)

    def bounds(self, members: tuple[str, ...]) -> dict[Pair, float]:
        """The most that each (ahead, behind) may be apart; GraphError when the edges make no graph of the members."""
        bounds: dict[Pair, float] = dict.fromkeys(permutations(members, 2), inf)
        if self.bounded:
            rules = self.model_dump(include={"max_ig", "backup", "staleness", "notify_ack"})
            bounds |= gap_bounds(Graph(self.standing(members), frozenset(self.edges)), **rules)
        return bounds


class PlanningSpec(BaseModel):
    """What is known of the network at first, and how plans for it are made and chosen.

    `view.knowledge` says where the controller's knowledge comes from: `declared` and `oracle` views change only by
    POST /network; a `measured` one starts from the declared rates and is corrected by the members' transfers.

    Every plan is given the `codec`, for some overlay edges (`a->b`) another of `link_codecs` beside those that its
    policy chose, and with a `period` above 1 the members' sites as groups, which reduce among themselves in all rounds
    but each `period`-th; a policy that makes groups itself has its own way.

    Where training is `conducted` plans say how members train as well, and the codec is chosen with that.

    `period_s`: the least time between two evaluations of the policy. `margin`: the part of the predicted round
    that another plan must save. `dwell_rounds`: how many rounds a plan stands before another may follow. With `hold`
    none is looked for but where the network is declared to be another one, and nothing is probed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    view: Annotated[View, PlainValidator(_view), PlainSerializer(View.to_json)]
    policy: str
    options: dict[str, Any] = {}
    codec: str = PLAIN_CODEC
    link_codecs: dict[str, str] = {}
    period: int = Field(default=1, ge=1)
    period_s: float = Field(default=5.0, ge=0)
    margin: float = Field(default=0.1, ge=0, lt=1)
    dwell_rounds: int = Field(default=3, ge=0)
    hold: bool = False
    conducted: bool = False

    @model_validator(mode="after")
    def _has_a_policy(self) -> PlanningSpec:
        self.make_policy()
        return self

    def make_policy(self) -> Policy:
        """The policy that is run; PolicyError when there is none of the name or options."""
        return policy_named(self.policy, self.options)

    def dress(self, plan: Plan, view: View) -> Plan:
        """A policy's plan with what is not the policy's business; PolicyError when a site's members do not meet."""
        known = set(plan.members)
        links = {edge: codec for edge, codec in self.link_codecs.items() if set(edge.split("->")) <= known}
        plan = replace(plan, codec=self.codec, link_codecs={**plan.link_codecs, **links})
        return plan if self.period == 1 or plan.groups else with_site_groups(plan, view, self.period)


class Newcomer(BaseModel):
    """A member that is to come while the others train: its job, and the codecs of overlay edges to and from it that
    differ from what plans name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    job: Annotated[Job, PlainValidator(_job), PlainSerializer(_job_json)]
    link_codecs: dict[str, str] = {}


class ControllerSpec(BaseModel):
    """Members and their jobs, and either the `planning` of the trees by which they reduce in rounds, or the `graph`
    over which they gossip: no plan is made for those.

    From the `secret`, which never leaves the controller, it derives what members are known by (see Identities).
    Unless it is `elastic`, a member that dies ends the run; where the graph survives that, it stays away.
    """

    # An error must not repeat what it is about: the secret would be in it, and errors go into logs.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    members: tuple[str, ...] = Field(min_length=1)
    secret: str = Field(min_length=1, repr=False)
    jobs: dict[str, Annotated[Job, PlainValidator(_job), PlainSerializer(_job_json)]]
    planning: PlanningSpec | None = None
    graph: GossipGraph | None = None
    elastic: Elasticity | None = None

    @field_validator("members")
    @classmethod
    def _are_names(cls, members: tuple[str, ...]) -> tuple[str, ...]:
        for member in members:
            check_name(member)
        if len(set(members)) < len(members):
            raise ValueError("two members have one name; give each its own")
        return members

    @model_validator(mode="after")
    def _agrees(self) -> ControllerSpec:
        if (self.planning is None) == (self.graph is None):
            raise ValueError("members reduce by plans or gossip over a graph: give either `planning` or `graph`")
        if self.planning:
            self._check_planning(self.planning)
        if self.graph:
            self._check_graph(self.graph)
        if set(self.jobs) != set(self.members):
            raise ValueError(f"jobs must be those of the members: {sorted(set(self.jobs) ^ set(self.members))}")
        if self.elastic is not None and self.elastic.quorum > len(self.members):
            raise ValueError(f"the quorum is {self.elastic.quorum}, and there are {len(self.members)} members")
        return self

    def _check_planning(self, planning: PlanningSpec) -> None:
        if self.members != planning.view.names:
            raise ValueError(f"members {list(self.members)} are not those of the view, {list(planning.view.names)}")
        if self.elastic is not None and planning.period > 1:
            raise ValueError("an elastic run has no groups: a member lost in a group's round can't be mended yet")

    def _check_graph(self, graph: GossipGraph) -> None:
        if self.elastic is not None and (graph.leaders or not graph.survives):
            raise ValueError(
                "who has died comes again only where others go on without it, and none where members stand for sites"
            )
        graph.bounds(self.members)

    def with_member(self, newcomer: Newcomer, view: View) -> ControllerSpec:
        """With one member more, of those who go by plans, in a network that is this one by now; pydantic's
        ValidationError where it can't be."""
        if self.planning is None:
            raise ValueError("members gossip over a graph that was made for them")
        codecs = {**self.planning.link_codecs, **newcomer.link_codecs}
        return ControllerSpec(
            members=view.names,
            secret=self.secret,
            jobs={**self.jobs, newcomer.name: newcomer.job},
            planning=self.planning.model_copy(update={"view": view, "link_codecs": codecs}),
            elastic=self.elastic,
        )

    @property
    def rounds(self) -> int:
        """How many rounds, or iterations, the jobs have, at most."""
        return max(job.rounds for job in self.jobs.values())


def load_spec(path: Path) -> ControllerSpec:
    """The spec in a file; pydantic's ValidationError when it is none, OSError when it can't be read."""
    return ControllerSpec.model_validate_json(path.read_bytes())
