"""What a scheme tells each member of an experiment, beside its options.

options, what is known of the network  --assign-->  Assignment  --of(member)-->  what the member's job has
                                                        `-> the communication graph, for the controller
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from msgspec.structs import asdict

from testbed.planning import View
from testbed.planning.graphs import Graph, Weighing, Weights, fast_edges, make_graph, weigh
from testbed.protocol import NodeConfiguration
from testbed.schemes.graph import DEGREE, InGraph


@dataclass(frozen=True, kw_only=True)
class Setting:
    """An experiment as its scheme sees it: the members and the network as the files declare them, the options of the
    policy, and the codec."""

    view: View
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    codec: str = "fp32"


class Assignment:
    """What members are told: nothing, unless a scheme says so."""

    def of(self, member: str) -> dict[str, Any]:
        """Plain values for the member's job."""
        return {}


@dataclass(frozen=True, kw_only=True)
class GossipAssignment(Assignment):
    """Which member sends to which, and by which rules.

    protocol    what members run, as their NodeConfiguration has it
    graph       of those that are its nodes; `sites` has the others of each one's site
    weighing    how members weigh what they average
    rules       what the protocol takes, the same for all; `own` what only one member is told
    steps       local steps to an iteration, by member; 1 where none are given
    evaluators  (period, phase) by member: it evaluates what it begins such iterations with. None: all do, in each
    groups      of staggered groups, for the run's manifest
    """

    protocol: str
    graph: Graph
    sites: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    weighing: Weighing = "uniform"
    rules: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    steps: Mapping[str, int] = field(default_factory=dict)
    evaluators: Mapping[str, tuple[int, int]] | None = None
    groups: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.weights  # GraphError now, where there are none

    @cached_property
    def weights(self) -> Weights:
        """What each member averages by."""
        return self.weigh(self.graph)

    def weigh(self, graph: Graph) -> Weights:
        """What each of a graph's members averages by; GraphError when its weights are not for such a graph."""
        return weigh(graph, self.weighing)

    def of(self, member: str) -> dict[str, Any]:
        return asdict(self.place(member))

    def place(self, member: str) -> NodeConfiguration:
        """Where the member stands."""
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
    """The graph that options name, over the `members`, all by default; GraphError when they make none."""
    if options.graph == "network":
        return fast_edges(setting.view, options.degree or DEGREE)
    return make_graph(options.graph, members or setting.view.names)
