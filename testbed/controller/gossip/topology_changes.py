"""Another communication graph while members train: agreed on with them in two phases, so that all go over to it in one
iteration.

    prepare   PrepareGraph      --> all       how far can you go on?
    promise   PromiseGraph <-- each      it enters no iteration from that one on
    commit    CommitGraph     --> all       the latest of those, and each one's place from there on
    abort     AbortGraph  --> all       instead, when a member died or left meanwhile, or training ends before

A member that comes waits until the others have promised, and begins in the iteration in which they go over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from testbed.controller.gossip.iteration_log import IterationLog
from testbed.controller.model.actions import Action, Actions, Tell
from testbed.controller.model.clocks import Clocks
from testbed.controller.model.contradiction import Contradiction
from testbed.controller.model.spec import GossipGraph
from testbed.planning.graphs import Graph, GraphError, make_graph
from testbed.protocol import AbortGraph, CommitGraph, Job, NodeConfiguration, PrepareGraph, PromiseGraph

#: Iterations that members keep in hand while they are asked: one that is on, and one more while word is on its way.
AHEAD = 3


@dataclass(slots=True)
class GraphSwap:
    """One swap: `first` is the iteration in which it happened, None while it is not agreed on.

    `graph` is the family, empty for what is left of the graph that the run began with; `joins` who comes with it.
    """

    graph: str
    requested_s: float
    first: int | None = None
    given_up: str = ""
    joins: str = ""


class TopologyChanges:
    """Puts other graphs in force, one after the other. `late` says why there will be none any more, if that is so."""

    def __init__(self, graph: GossipGraph, jobs: Mapping[str, Job], iterations: IterationLog, clocks: Clocks) -> None:
        self.swaps: list[GraphSwap] = []
        self.late = ""
        self._in_force = graph
        self._whole = Graph(graph.standing(iterations.members), frozenset(graph.edges))  # when nobody had died
        self._jobs = jobs
        self._rounds = next(iter(jobs.values())).rounds
        self._iterations = iterations
        self._clocks = clocks
        self._prepared: Graph | None = None
        self._address: tuple[str, int] = ("", 0)
        self._ends: dict[str, int] = {}
        self._unanswered: Counter[str] = Counter()

    @property
    def idle(self) -> bool:
        """Whether no swap is under way."""
        return self._prepared is None and (not self.swaps or self._over(self.swaps[-1]))

    def prepare(self, kind: str) -> Actions:
        """Go over to the graph of that family; GraphError when there is none such, or it can't be done now."""
        if not self._in_force.survives or self._in_force.fixed:
            raise GraphError(
                "only Hop's members go over to another graph; the other protocols have one", rule="protocol"
            )
        if self.late:
            raise GraphError(f"too late for another graph: {self.late}", rule="late")
        if not self.idle:
            raise GraphError(
                "another swap of the graph is under way; try again when all members have turned", rule="busy"
            )
        graph = make_graph(kind, self._in_force.standing(self._iterations.members))
        yield from self._ask(GraphSwap(kind, self._clocks.unix()), graph)

    def prepare_with(self, comer: str, address: tuple[str, int]) -> Actions:
        """Go over to the same graph with a member more, which listens at `address`. GraphError when there is none.

        To be called when no swap is under way.
        """
        names = {*self._iterations.members, comer}
        kind = next((swap.graph for swap in reversed(self.swaps) if swap.graph and not swap.given_up), "")
        if comer in self._whole.members:
            members = tuple(name for name in self._whole.members if name in names)
            graph = Graph(members, frozenset(edge for edge in self._whole.edges if names.issuperset(edge)))
        else:
            graph = make_graph(kind, tuple(name for name in self._jobs if name in names))
        self._address = address
        yield from self._ask(GraphSwap(kind, self._clocks.unix(), joins=comer), graph)

    def promised(self, promised: PromiseGraph) -> Generator[Action, None, NodeConfiguration | None]:
        """A member's answer. Returns the place of the member that comes with the graph, once that is agreed on.
        Contradiction when nobody asked it."""
        if self._unanswered[promised.member] < 1:
            raise Contradiction(
                "it promises to wait for a graph that it was not asked to wait for",
                rule="not-asked",
                member=promised.member,
            )
        self._unanswered[promised.member] -= 1
        if self._prepared is None or self._unanswered[promised.member] > 0:
            return None  # it was released meanwhile; perhaps asked again, and what it says to that is to come
        self._ends[promised.member] = promised.end
        if not self._ends.keys() >= {*self._prepared.members} - {self.swaps[-1].joins}:
            return None
        first = max(self._ends.values())
        if first >= self._rounds:
            yield from self.close("training ends before all could turn")
            return None
        return (yield from self._commit(first, self._prepared))

    def died(self, member: str) -> Actions:
        """A member is gone: what is not agreed on yet will not be."""
        del self._unanswered[member]
        if self._prepared is not None and member in self._prepared.members:
            yield from self._abort(f"{member} is gone")

    def close(self, why: str) -> Actions:
        """Training is at its end, at least for some: there will be no other graph any more."""
        self.late = self.late or why
        if self._prepared is not None:
            yield from self._abort(why)

    def _ask(self, swap: GraphSwap, graph: Graph) -> Actions:
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
        if not swap.joins or swap.joins not in self._whole.members:
            self._whole = graph
        self._in_force = self._in_force.model_copy(update={"edges": tuple(sorted(graph.edges))})
        self._iterations.change_graph(first, self._in_force, swap.joins)
        roster = {swap.joins: self._address} if swap.joins else {}
        for member in graph.members:
            if member != swap.joins:
                yield Tell(member, CommitGraph(first, self._place(member, graph), roster))
        return replace(self._place(swap.joins, graph), first=first) if swap.joins else None

    def _abort(self, why: str) -> Actions:
        self.swaps[-1].given_up = why
        self._prepared = None
        for member in self._in_force.standing(self._iterations.members):
            yield Tell(member, AbortGraph())

    def _over(self, swap: GraphSwap) -> bool:
        return bool(swap.given_up) or (self._iterations.lowest or 0) >= (swap.first or 0)

    def _check(self, graph: Graph) -> None:
        fewest = min(len(graph.sources(member)) for member in graph.members)
        if self._in_force.backup > fewest:
            raise GraphError(
                f"backup is {self._in_force.backup}, and some member would have {fewest} in-neighbours",
                rule="backup",
                given=fewest,
            )
        self._in_force.weigh(graph)

    def _place(self, member: str, graph: Graph) -> NodeConfiguration:
        sources, targets = graph.sources(member), graph.targets(member)
        partners = tuple(other for other in graph.members if other in {*sources, *targets})
        weights = self._in_force.weigh(graph)[member]
        before = NodeConfiguration.from_json(self._jobs[member].assignment)
        partners += tuple(before.rules.get("site", ()))
        return replace(before, sources=sources, targets=targets, weights=weights, partners=partners)
