"""The assignment of an experiment's members: what the scheme tells each of them, beside its options.

options, what is known of the network  --assign-->  Assignment  --of(member)-->  what the member's job has
                                                        `-> the communication graph, for the controller

Planning is imported inside functions, because workers import this module and lack planning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from testbed.protocol import NodeConfiguration
from testbed.schemes.options import DEGREE, InGraph

if TYPE_CHECKING:
    from testbed.planning import View
    from testbed.planning.graphs import Graph, Weighing, Weights
    from testbed.planning.view import Member


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The input of a scheme's `assign`: the declared network and members, the policy's options, the codec."""

    #: The members and the network as the files declare them.
    view: View
    #: The options of the policy.
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    #: The codec of the experiment's plans.
    codec: str = "fp32"


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """The values that a scheme adds to the members' jobs, beside its options; none by default."""

    #: Values for one member alone, by member.
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def of(self, member: str) -> dict[str, Any]:
        """Return what the scheme adds to this member's job, as plain values; empty if it adds nothing."""
        return dict(self.own.get(member, {}))


@dataclass(frozen=True, kw_only=True)
class GossipAssignment(Assignment):
    """The communication graph and the rules of a gossip protocol. `own` adds to the rules of one member."""

    #: The program that members run, as their NodeConfiguration names it.
    protocol: str
    #: The communication graph. Its nodes are the sites' leaders if `sites` are given.
    graph: Graph
    #: The other workers of each leader's site.
    sites: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: The rule by which members weigh the parameters that they average.
    weighing: Weighing = "uniform"
    #: The rules of the protocol, the same for all members.
    rules: Mapping[str, Any] = field(default_factory=dict)
    #: Local steps in an iteration, by member; 1 where none are given.
    steps: Mapping[str, int] = field(default_factory=dict)
    #: (period, phase) of the iterations at whose start a member evaluates the model; None: all members, in each.
    evaluators: Mapping[str, tuple[int, int]] | None = None
    #: The staggered groups, for the run's manifest.
    groups: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.weights  # raises GraphError now if there are none

    @cached_property
    def weights(self) -> Weights:
        """The weights by which each member averages."""
        return self.weigh(self.graph)

    def weigh(self, graph: Graph) -> Weights:
        """Return the averaging weights of each member of a graph. Raises GraphError where its shape allows none."""
        from testbed.planning.graphs import weigh

        return weigh(graph, self.weighing)

    def of(self, member: str) -> dict[str, Any]:
        """Return the member's node configuration as plain values."""
        return asdict(self.node(member))

    def node(self, member: str) -> NodeConfiguration:
        """Return the member's node configuration: its neighbours, weights and rules."""
        if member not in self.graph.members:
            leader = next(leader for leader, others in self.sites.items() if member in others)
            return NodeConfiguration("worker", (), (), {}, (leader,), {"leader": leader})
        sources, targets = self.graph.sources(member), self.graph.targets(member)
        partners = tuple(other for other in self.graph.members if other in {*sources, *targets})
        weights = self.weights[member]
        rules = {**self.rules, **self.own.get(member, {})}
        if member in self.sites:
            site = self.sites[member]
            return NodeConfiguration("leader", sources, targets, weights, (*partners, *site), {**rules, "site": site})
        evaluates = (1, 0) if self.evaluators is None else self.evaluators.get(member)
        steps = self.steps.get(member, 1)
        return NodeConfiguration(self.protocol, sources, targets, weights, partners, rules, steps, evaluates)


def graph_of(options: InGraph, setting: Setting, members: tuple[str, ...] = ()) -> Graph:
    """Return the graph that options name, over `members`, by default all. Raises GraphError if there is none."""
    from testbed.planning.graphs import fast_edges, make_graph

    if options.graph == "network":
        return fast_edges(setting.view, options.degree or DEGREE)
    return make_graph(options.graph, members or setting.view.names)


def best_reached(view: View) -> str:
    """Return the member that the others reach best: the root of the best star.

    Raises:
        PolicyError: No member can be reached by all.
    """
    from testbed.planning import make_policy

    (root,) = {tree.root for tree in make_policy("star").plan(view).trees}
    return root


def star_around(centre: str, view: View) -> Graph:
    """Return the graph in which every other member has the centre as its one neighbour."""
    from testbed.planning.graphs import Graph

    return Graph.undirected(view.names, [(name, centre) for name in view.names if name != centre])


def sites_of(view: View) -> Mapping[str, tuple[str, ...]]:
    """Return each site's other workers by its first worker, which stands for the site."""
    sites: dict[str, list[str]] = {}
    for member in view.members:
        sites.setdefault(member.site, []).append(member.name)
    return {leader: tuple(others) for leader, *others in sites.values()}


def steps_of(members: Sequence[Member], every: int) -> tuple[int, ...]:
    """Return each member's local steps in a round, so that all are done at about the same time.

    The fastest member takes `every`, the others take steps in proportion to their speed, at least one.
    """
    fastest = max(member.speed for member in members)
    return tuple(max(1, round(every * member.speed / fastest)) for member in members)
