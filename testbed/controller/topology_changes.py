"""Another communication graph while members train: agreed on with them in two steps, so that all turn in one iteration.

Ask       --> all       how far can you go on?
Promised  <-- each      it enters no iteration from that one on
Turn      --> all       the latest of those, and each one's place from there on
Release   --> all       instead, when somebody died or left meanwhile, or training ends before

A member that comes waits until the others have promised, and begins in the iteration in which they turn.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace

from testbed.controller.iteration_log import IterationLog
from testbed.controller.spec import GossipGraph
from testbed.planning.graphs import Graph, GraphError, make_graph
from testbed.protocol import Ask, Job, Message, Place, Promised, Release, Turn

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
    """Puts other graphs in force, one after the other. `send` reaches a member that is there.

    `let_in` is called with who comes, and its place, when the others have turned.
    """

    def __init__(
        self,
        circle: GossipGraph,
        jobs: Mapping[str, Job],
        book: IterationLog,
        send: Callable[[str, Message], None],
        let_in: Callable[[str, Place], None],
    ) -> None:
        self.swaps: list[GraphSwap] = []
        self._circle = circle
        self._whole = Graph(circle.standing(book.members), frozenset(circle.edges))  # when nobody had died
        self._jobs = jobs
        self._rounds = next(iter(jobs.values())).rounds
        self._book = book
        self._send = send
        self._let_in = let_in
        self._wanted: Graph | None = None
        self._address: tuple[str, int] = ("", 0)
        self._ends: dict[str, int] = {}
        self._owed: Counter[str] = Counter()
        self._late = ""

    @property
    def late(self) -> str:
        """Why there will be no other graph any more; empty while there may."""
        return self._late

    @property
    def idle(self) -> bool:
        """Whether no swap is under way."""
        return self._wanted is None and (not self.swaps or self._over(self.swaps[-1]))

    def begin(self, kind: str) -> None:
        """Go over to the graph of that family; GraphError when there is none such, or it can't be done now."""
        if not self._circle.survives:
            raise GraphError("only Hop's members go over to another graph; the other protocols have one")
        if self._late:
            raise GraphError(f"too late for another graph: {self._late}")
        if not self.idle:
            raise GraphError("another swap of the graph is under way; try again when all members have turned")
        self._ask(GraphSwap(kind, time.time()), make_graph(kind, self._circle.standing(self._book.members)))

    def widen(self, comer: str, address: tuple[str, int]) -> None:
        """Go over to the same graph with a member more, which listens at `address`. GraphError when there is none.

        To be called when no swap is under way.
        """
        names = {*self._book.members, comer}
        kind = next((swap.graph for swap in reversed(self.swaps) if swap.graph and not swap.given_up), "")
        if comer in self._whole.members:
            members = tuple(name for name in self._whole.members if name in names)
            graph = Graph(members, frozenset(edge for edge in self._whole.edges if names.issuperset(edge)))
        else:
            graph = make_graph(kind, tuple(name for name in self._jobs if name in names))
        self._address = address
        self._ask(GraphSwap(kind, time.time(), joins=comer), graph)

    def promised(self, promised: Promised) -> None:
        """A member's answer."""
        self._owed[promised.member] -= 1
        if self._wanted is None or self._owed[promised.member] > 0:
            return  # it was released meanwhile; perhaps asked again, and what it says to that is to come
        self._ends[promised.member] = promised.end
        if not self._ends.keys() >= {*self._wanted.members} - {self.swaps[-1].joins}:
            return
        first = max(self._ends.values())
        if first >= self._rounds:
            self.end("training ends before all could turn")
        else:
            self._turn(first, self._wanted)

    def gone(self, member: str) -> None:
        """A member has died: what is not agreed on yet will not be."""
        del self._owed[member]
        if self._wanted is not None and member in self._wanted.members:
            self._give_up(f"{member} is gone")

    def end(self, why: str) -> None:
        """Training is at its end, at least for some: there will be no other graph any more."""
        self._late = self._late or why
        if self._wanted is not None:
            self._give_up(why)

    def _ask(self, swap: GraphSwap, graph: Graph) -> None:
        self._check(graph)
        self.swaps.append(swap)
        self._wanted, self._ends = graph, {}
        for member in graph.members:
            if member != swap.joins:
                self._owed[member] += 1
                self._send(member, Ask(AHEAD))

    def _turn(self, first: int, graph: Graph) -> None:
        swap = self.swaps[-1]
        swap.first = first
        self._wanted = None
        if not swap.joins or swap.joins not in self._whole.members:
            self._whole = graph
        self._circle = self._circle.model_copy(update={"edges": tuple(sorted(graph.edges))})
        self._book.turn(first, self._circle, swap.joins)
        roster = {swap.joins: self._address} if swap.joins else {}
        for member in graph.members:
            place = self._place(member, graph)
            if member == swap.joins:
                self._let_in(member, replace(place, first=first))
            else:
                self._send(member, Turn(first, asdict(place), roster))

    def _give_up(self, why: str) -> None:
        self.swaps[-1].given_up = why
        self._wanted = None
        for member in self._circle.standing(self._book.members):
            self._send(member, Release())

    def _over(self, swap: GraphSwap) -> bool:
        return bool(swap.given_up) or (self._book.lowest or 0) >= (swap.first or 0)

    def _check(self, graph: Graph) -> None:
        fewest = min(len(graph.sources(member)) for member in graph.members)
        if self._circle.backup > fewest:
            raise GraphError(f"backup is {self._circle.backup}, and some member would have {fewest} in-neighbours")
        self._circle.weigh(graph)

    def _place(self, member: str, graph: Graph) -> Place:
        sources, targets = graph.sources(member), graph.targets(member)
        partners = tuple(other for other in graph.members if other in {*sources, *targets})
        weights = self._circle.weigh(graph)[member]
        before = Place.from_json(self._jobs[member].assignment)
        partners += tuple(before.rules.get("site", ()))
        return replace(before, sources=sources, targets=targets, weights=weights, partners=partners)
