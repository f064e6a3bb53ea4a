"""Changes of the communication graph during training, in two phases, so that all members change in one iteration.

    prepare   PrepareGraph --> all    asks how far a member must still go under the old graph
    promise   PromiseGraph <-- each   the iteration that the member will not enter before a decision
    commit    CommitGraph  --> all    the latest of those iterations, and each member's node configuration from it on
    abort     AbortGraph   --> all    instead, if a member died or left meanwhile, or training ends first

A member that joins waits until the others have promised, and begins in the iteration in which they change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from testbed.controller.gossip.iteration_log import IterationLog
from testbed.controller.model.actions import Action, Actions, Contradiction, Tell
from testbed.controller.model.clocks import Clocks
from testbed.controller.model.spec import GossipGraph
from testbed.planning.graphs import Graph, GraphError, make_graph, weigh
from testbed.protocol import AbortGraph, CommitGraph, Job, NodeConfiguration, PrepareGraph, PromiseGraph

#: Iterations that a member may still do before the decision: the current one, and others while messages are under way.
AHEAD = 3


@dataclass(slots=True)
class GraphSwap:
    """One swap of the graph."""

    #: The graph's family; empty for the remainder of the graph that the run began with.
    graph: str
    #: Unix seconds.
    requested_s: float
    #: The first iteration under the graph; None until it is agreed on.
    first: int | None = None
    #: Why the swap was aborted, or empty.
    given_up: str = ""
    #: The member that joins with the graph, or empty.
    joins: str = ""


class TopologyChanges:
    """Changes the graph of the members, one swap at a time."""

    def __init__(self, graph: GossipGraph, jobs: Mapping[str, Job], iterations: IterationLog, clocks: Clocks) -> None:
        self.swaps: list[GraphSwap] = []
        #: Why no further swap is possible, or empty.
        self.closed_reason = ""
        self._in_force = graph
        self._full_graph = Graph(
            graph.nodes(iterations.members), frozenset(graph.edges)
        )  # the graph as if no member had died
        self._jobs = jobs
        self._rounds = next(iter(jobs.values())).rounds
        self._iterations = iterations
        self._clocks = clocks
        self._prepared: Graph | None = None
        self._address: tuple[str, int] = ("", 0)
        self._ends: dict[str, int] = {}
        self._unanswered: Counter[str] = Counter()

    def neighbours(self, member: str) -> set[str]:
        """Return the present members to which a member has an edge, or which have one to it."""
        ends = {end for edge in self._in_force.edges if member in edge for end in edge}
        return ends & set(self._iterations.members) - {member}

    def refusal(self, member: str, error: GraphError) -> str:
        """Return why a member can't join, and what to do: `error` is that of `prepare_join`.

        The members that are lost may be the only ones that connect it with the others.
        """
        ends = {end for edge in self._full_graph.edges if member in edge for end in edge}
        lost = sorted(ends - {member, *self._iterations.members})
        if error.rule != "not-connected" or not lost:
            return str(error)
        return (
            f"the graph does not connect {member} with the members that train while {', '.join(lost)} "
            f"{'is' if len(lost) == 1 else 'are'} lost; start {member} again once one of its neighbours is back"
        )

    @property
    def idle(self) -> bool:
        """True if no swap is under way."""
        return self._prepared is None and (not self.swaps or self._is_over(self.swaps[-1]))

    def prepare(self, kind: str) -> Actions:
        """Begin a swap to the graph of a family.

        Raises:
            GraphError: There is no such graph of these members, or no swap is possible now.
        """
        if not self._in_force.survives or self._in_force.fixed:
            raise GraphError(
                "this run's protocol keeps one graph; only Hop changes its graph during training", rule="protocol"
            )
        if self.closed_reason:
            raise GraphError(f"too late for another graph: {self.closed_reason}", rule="late")
        if not self.idle:
            raise GraphError(
                "another swap of the graph is under way; try again when all members have changed to it", rule="busy"
            )
        graph = make_graph(kind, self._in_force.nodes(self._iterations.members))
        yield from self._begin(GraphSwap(kind, self._clocks.unix()), graph)

    def prepare_join(self, member: str, address: tuple[str, int]) -> Actions:
        """Begin a swap to the same graph with one more member. To be called when no swap is under way.

        Args:
            member: The member that joins.
            address: Its address for its peers: host and port.

        Raises:
            GraphError: There is no such graph of these members.
        """
        names = {*self._iterations.members, member}
        kind = next((swap.graph for swap in reversed(self.swaps) if swap.graph and not swap.given_up), "")
        if member in self._full_graph.members:
            members = tuple(name for name in self._full_graph.members if name in names)
            graph = Graph(members, frozenset(edge for edge in self._full_graph.edges if names.issuperset(edge)))
        else:
            graph = make_graph(kind, tuple(name for name in self._jobs if name in names))
        self._address = address
        yield from self._begin(GraphSwap(kind, self._clocks.unix(), joins=member), graph)

    def promised(self, promised: PromiseGraph) -> Generator[Action, None, NodeConfiguration | None]:
        """Count a member's promise. The last one commits the prepared graph, unless the swap was aborted.

        Returns:
            The node configuration of the member that joins with the graph, once the graph is agreed on; else None.

        Raises:
            Contradiction: The member has no PrepareGraph to answer.
        """
        if self._unanswered[promised.member] < 1:
            text = "it sent a promise without a PrepareGraph before it"
            raise Contradiction(text, rule="not-asked", member=promised.member)
        self._unanswered[promised.member] -= 1
        if self._prepared is None or self._unanswered[promised.member] > 0:
            return None  # the swap was aborted meanwhile; if another was prepared, that answer is still to come
        self._ends[promised.member] = promised.end
        if not self._ends.keys() >= {*self._prepared.members} - {self.swaps[-1].joins}:
            return None
        first = max(self._ends.values())
        if first >= self._rounds:
            yield from self.close("training ends before all members could change")
            return None
        return (yield from self._commit(first, self._prepared))

    def died(self, member: str) -> Actions:
        """Abort the swap under way, because one of its members is gone."""
        del self._unanswered[member]
        if self._prepared is not None and member in self._prepared.members:
            yield from self._abort(f"{member} is gone")

    def close(self, why: str) -> Actions:
        """Allow no further swap, and abort the one under way: training is over for some members."""
        self.closed_reason = self.closed_reason or why
        if self._prepared is not None:
            yield from self._abort(why)

    def _begin(self, swap: GraphSwap, graph: Graph) -> Actions:
        self._check(graph)
        self.swaps.append(swap)
        self._prepared, self._ends = graph, {}
        for member in graph.members:
            if member != swap.joins:
                self._unanswered[member] += 1
                yield Tell(member, PrepareGraph(AHEAD))

    def _commit(self, first: int, graph: Graph) -> Generator[Action, None, NodeConfiguration | None]:
        swap = self.swaps[-1]
        swap.first = first
        self._prepared = None
        if not swap.joins or swap.joins not in self._full_graph.members:
            self._full_graph = graph
        self._in_force = self._in_force.model_copy(update={"edges": tuple(sorted(graph.edges))})
        self._iterations.change_graph(first, self._in_force, swap.joins)
        roster = {swap.joins: self._address} if swap.joins else {}
        for member in graph.members:
            if member != swap.joins:
                yield Tell(member, CommitGraph(first, self._configuration(member, graph), roster))
        return replace(self._configuration(swap.joins, graph), first=first) if swap.joins else None

    def _abort(self, why: str) -> Actions:
        self.swaps[-1].given_up = why
        self._prepared = None
        for member in self._in_force.nodes(self._iterations.members):
            yield Tell(member, AbortGraph())

    def _is_over(self, swap: GraphSwap) -> bool:
        return bool(swap.given_up) or (self._iterations.lowest or 0) >= (swap.first or 0)

    def _check(self, graph: Graph) -> None:
        fewest = min(len(graph.sources(member)) for member in graph.members)
        if self._in_force.backup > fewest:
            text = f"`backup` is {self._in_force.backup}, and a member of this graph has only {fewest} in-neighbours"
            raise GraphError(text, rule="backup", given=fewest)
        weigh(graph, self._in_force.weights)

    def _configuration(self, member: str, graph: Graph) -> NodeConfiguration:
        sources, targets = graph.sources(member), graph.targets(member)
        partners = tuple(other for other in graph.members if other in {*sources, *targets})
        weights = weigh(graph, self._in_force.weights)[member]
        before = NodeConfiguration.from_json(self._jobs[member].assignment)
        partners += tuple(before.rules.get("site", ()))
        return replace(before, sources=sources, targets=targets, weights=weights, partners=partners)
