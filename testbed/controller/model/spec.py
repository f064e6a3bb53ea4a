"""The controller's spec, a JSON file that is written by the program that starts the controller."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from math import inf
from pathlib import Path
from typing import Annotated, Any

from msgspec.structs import asdict
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator, field_validator, model_validator

from testbed.plan import PLAIN_CODEC, Plan
from testbed.planning import Pair, Policy, PolicyError, View
from testbed.planning.fastest import with_site_groups
from testbed.planning.gaps import gap_bounds
from testbed.planning.graphs import Graph, GraphError, Weighing
from testbed.plugins import policy_named
from testbed.protocol import Job
from testbed.schema import check_name


def _view(value: Any) -> View:
    return value if isinstance(value, View) else View.from_json(value)


def _job(value: Any) -> Job:
    return value if isinstance(value, Job) else Job.from_json(value)


JobField = Annotated[Job, PlainValidator(_job), PlainSerializer(asdict)]


class Elasticity(BaseModel):
    """Members may leave and join while others train, as long as a quorum is present.

    Members that gossip have no leases: a member whose connection ends is gone.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: The least number of members with which the run goes on.
    quorum: int = Field(ge=1)
    #: A member that does not renew its lease for this many seconds is gone.
    lease_s: float = Field(default=5.0, gt=0)


class GossipGraph(BaseModel):
    """The graph over which members gossip, and Hop's rules (arXiv 1902.01064) on how many iterations they get apart."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: The directed edges: (sender, receiver).
    edges: tuple[tuple[str, str], ...]
    #: If given, only these members are in the graph, each for its site; the site's other members follow.
    leaders: tuple[str, ...] = ()
    #: Whether the rules below bound the iteration gap; without, members exchange freely or by their protocol's rules.
    bounded: bool = True
    #: Whether the other members go on when one dies.
    survives: bool = False
    #: Whether the graph must stay. If it survives and is not fixed, members may change to another graph (Hop).
    fixed: bool = False
    #: The weights by which members average.
    weights: Weighing = "uniform"
    #: The limit of tokens: a member gets at most this many iterations ahead of an out-neighbour. None for no tokens.
    max_ig: int | None = None
    #: The number of an iteration's updates for which a member does not wait.
    backup: int = 0
    #: Iterations by which a neighbour's newest update may be behind.
    staleness: int = 0
    #: Whether a member sends only after its out-neighbours have acknowledged its last update.
    notify_ack: bool = False

    def without(self, gone: str, members: tuple[str, ...]) -> GossipGraph:
        """Return the graph without a member that died.

        Args:
            gone: The member that died.
            members: The members before its death.

        Raises:
            GraphError: The others can't reach agreement over what remains.
        """
        if gone not in self.nodes(members):
            return self
        if self.leaders:
            raise GraphError(f"{gone} was the leader of its site, whose other workers now reach no other site")
        left = Graph(members, frozenset(self.edges)).without(gone)
        if len(left.members) < 2:
            raise GraphError(f"{', '.join(left.members)} is the only member left, without a neighbour to train with")
        return self.model_copy(update={"edges": tuple(sorted(left.edges))})

    def nodes(self, members: tuple[str, ...]) -> tuple[str, ...]:
        """Return the members that are in the graph."""
        return tuple(member for member in members if member in self.leaders) if self.leaders else members

    def bounds(self, members: tuple[str, ...]) -> dict[Pair, float]:
        """Return the bound on the iteration gap of each pair (ahead, behind).

        Raises:
            GraphError: The edges make no connected graph of the members.
        """
        bounds: dict[Pair, float] = dict.fromkeys(permutations(members, 2), inf)
        if self.bounded:
            rules = self.model_dump(include={"max_ig", "backup", "staleness", "notify_ack"})
            bounds |= gap_bounds(Graph(self.nodes(members), frozenset(self.edges)), **rules)
        return bounds


class PlanningSpec(BaseModel):
    """The first view of the network, and the rules by which plans are made and chosen."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    #: The network at first. `view.knowledge` is the source of later knowledge: a `declared` or `oracle` view changes
    #: only by a ChangeNetwork request; a `measured` view starts from the declared rates and is corrected by transfers.
    view: Annotated[View, PlainValidator(_view), PlainSerializer(View.to_json)]
    policy: str
    options: dict[str, Any] = {}
    #: The codec of every plan.
    codec: str = PLAIN_CODEC
    #: The codecs of overlay edges (`a->b`) that differ from `codec`, beside those that the policy chose.
    link_codecs: dict[str, str] = {}
    #: If above 1, each site's members are a group, which reduces within itself except in each `period`-th round. A
    #: policy that makes groups itself keeps its own period.
    period: int = Field(default=1, ge=1)
    #: The least time between two evaluations of the policy, in seconds.
    period_s: float = Field(default=5.0, ge=0)
    #: The fraction of the predicted round that another plan must save.
    margin: float = Field(default=0.1, ge=0, lt=1)
    #: The number of rounds for which a plan stays in force before another may follow.
    dwell_rounds: int = Field(default=3, ge=0)
    #: Keep the first plan unless it uses an edge that is gone, a member joins or leaves, or a user asks for another;
    #: probe nothing.
    hold: bool = False
    #: Whether rounds differ in size. The bytes of a round are then those that members sent in the newest rounds, and
    #: `view.model_bytes` before these.
    measured_bytes: bool = False
    #: The part of the steps between two rounds that members take while the first of them is reduced.
    covered: float = Field(default=0.0, ge=0, le=1)
    #: Whether plans also say how members train; the codec is then chosen with that.
    conducted: bool = False

    @model_validator(mode="after")
    def _has_a_policy(self) -> PlanningSpec:
        self.make_policy()
        return self

    def make_policy(self) -> Policy:
        """Return the policy that this spec names, with its options.

        Raises:
            PolicyError: There is no policy of this name, or it does not take these options.
        """
        return policy_named(self.policy, self.options)

    def dress(self, plan: Plan, view: View) -> Plan:
        """Return a policy's plan with the codecs and groups of this spec.

        Raises:
            PolicyError: A site's members are not connected within the site's part of the plan.
        """
        known = set(plan.members)
        links = {edge: codec for edge, codec in self.link_codecs.items() if set(edge.split("->")) <= known}
        plan = replace(plan, codec=self.codec, link_codecs={**plan.link_codecs, **links})
        return plan if self.period == 1 or plan.groups else with_site_groups(plan, view, self.period)

    def check_codecs(self, plan: Plan) -> None:
        """Check that a plan that a user wrote has the codecs that `dress` gives it.

        Members' schemes and the predictions of rounds go by the run's codecs. Where plans say how members train, the
        controller chooses the codec, whatever the plan has.

        Raises:
            PolicyError: A codec of the plan differs from the run's.
        """
        if plan.codec != self.codec and not self.conducted:
            text = (
                f"the plan's codec is {plan.codec}, and this run's is {self.codec}: write {self.codec} into the plan, "
                "or begin a run with the other codec"
            )
            raise PolicyError(text, field="codec", given=plan.codec)
        for edge, codec in plan.link_codecs.items():
            if (own := self.link_codecs.get(edge, codec)) != codec:
                text = (
                    f"the plan's codec of {edge} is {codec}, and this run's is {own}: write {own} into the plan's "
                    "link_codecs, or begin a run with the other codec"
                )
                raise PolicyError(text, field="link_codecs", link=edge, given=codec)


class Newcomer(BaseModel):
    """A member that will join during training, with its job."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    job: JobField
    #: The codecs of overlay edges to and from the member that differ from the plan's codec.
    link_codecs: dict[str, str] = {}


class ControllerSpec(BaseModel):
    """The members of a run and their jobs, and either `planning` (all-reduce by plans) or `graph` (gossip)."""

    # An error must not repeat its input: the secret would be in it, and errors go into logs.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    members: tuple[str, ...] = Field(min_length=1)
    #: The members' tokens and keys are derived from it (see Identities). It never leaves the controller.
    secret: str = Field(min_length=1, repr=False)
    jobs: dict[str, JobField]
    planning: PlanningSpec | None = None
    graph: GossipGraph | None = None
    #: Without it, the death of a member ends the run; a graph that survives the death goes on without the member.
    elastic: Elasticity | None = None

    @field_validator("members")
    @classmethod
    def _are_names(cls, members: tuple[str, ...]) -> tuple[str, ...]:
        for member in members:
            check_name(member)
        if len(set(members)) < len(members):
            raise ValueError("two members have the same name; give each its own")
        return members

    @model_validator(mode="after")
    def _agrees(self) -> ControllerSpec:
        if (self.planning is None) == (self.graph is None):
            raise ValueError("members reduce by plans, or gossip over a graph: give either `planning` or `graph`")
        if self.planning:
            self._check_planning(self.planning)
        if self.graph:
            self._check_graph(self.graph)
        if set(self.jobs) != set(self.members):
            raise ValueError(
                f"`jobs` must have each member and no other: see {sorted(set(self.jobs) ^ set(self.members))}"
            )
        if self.elastic is not None and self.elastic.quorum > len(self.members):
            raise ValueError(f"the quorum {self.elastic.quorum} is above the number of members, {len(self.members)}")
        return self

    def _check_planning(self, planning: PlanningSpec) -> None:
        if self.members != planning.view.names:
            raise ValueError(f"`members` {list(self.members)} differ from the view's {list(planning.view.names)}")
        if self.elastic is not None and planning.period > 1:
            raise ValueError(
                "an elastic run takes no `period` above 1: a member lost in a group's round can't be recovered yet"
            )

    def _check_graph(self, graph: GossipGraph) -> None:
        if self.elastic is not None and (graph.leaders or not graph.survives):
            raise ValueError(
                "`elastic` needs a graph that survives a death and has no leaders: else no lost member can join again"
            )
        graph.bounds(self.members)

    def with_member(self, newcomer: Newcomer, view: View) -> ControllerSpec:
        """Return this spec with one more member.

        `view` is the current view of the network, with the member in it.

        Raises:
            ValueError: This run gossips, or (pydantic's ValidationError) the member does not fit the spec.
        """
        if self.planning is None:
            raise ValueError("this run gossips over a graph that was made for its members, and takes no more")
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
        """The largest number of rounds, or of iterations, of any job."""
        return max(job.rounds for job in self.jobs.values())


def load_spec(path: Path) -> ControllerSpec:
    """Return the spec in a file.

    Raises:
        ValueError: The file is no valid spec (pydantic's ValidationError).
        OSError: The file can't be read.
    """
    return ControllerSpec.model_validate_json(path.read_bytes())
