"""Another communication graph while members train: agreed on with them in two steps, so that all turn in one iteration.

Ask       --> all       how far can you go on?
Promised  <-- each      it enters no iteration from that one on
Turn      --> all       the latest of those, and each one's place from there on
Release   --> all       instead, when somebody died or left meanwhile, or training ends before
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from testbed.controller.iterations import IterationBook
from testbed.controller.spec import Circle
from testbed.planning.graphs import Graph, GraphError, make_graph
from testbed.protocol import Ask, Job, Message, Place, Promised, Release, Turn

#: Iterations that members keep in hand while they are asked: one that is on, and one more while word is on its way.
AHEAD = 3


@dataclass(slots=True)
class GraphSwap:
    """One swap: `first` is the iteration in which it happened, None while it is not agreed on."""

    graph: str
    requested_s: float
    first: int | None = None
    given_up: str = ""


class Regraph:
    """Puts other graphs in force, one after the other. `send` reaches a member that is there."""

    def __init__(
        self, circle: Circle, jobs: Mapping[str, Job], book: IterationBook, send: Callable[[str, Message], None]
    ) -> None:
        self.swaps: list[GraphSwap] = []
        self._circle = circle
        self._jobs = jobs
        self._rounds = next(iter(jobs.values())).rounds
        self._book = book
        self._send = send
        self._wanted: Graph | None = None
        self._ends: dict[str, int] = {}

    def begin(self, kind: str) -> None:
        """Go over to the graph of that family; GraphError when there is none such, or it can't be done now."""
        if not self._circle.survives:
            raise GraphError("only Hop's members go over to another graph; the other protocols have one")
        if self._wanted is not None or (self.swaps and not self._over(self.swaps[-1])):
            raise GraphError("another swap of the graph is under way; try again when all members have turned")
        graph = make_graph(kind, self._circle.standing(self._book.members))
        self._check(graph)
        self.swaps.append(GraphSwap(kind, time.time()))
        self._wanted, self._ends = graph, {}
        for member in graph.members:
            self._send(member, Ask(AHEAD))

    def promised(self, promised: Promised) -> None:
        """A member's answer."""
        if self._wanted is None:
            return  # it was released meanwhile
        self._ends[promised.member] = promised.end
        if self._ends.keys() < set(self._wanted.members):
            return
        first = max(self._ends.values())
        if first > self._rounds:
            self._give_up("training ends before all could turn")
        else:
            self._turn(first, self._wanted)

    def gone(self, member: str) -> None:
        """A member has died, or is done: what is not agreed on yet will not be."""
        if self._wanted is not None:
            self._give_up(f"{member} is gone")

    def _turn(self, first: int, graph: Graph) -> None:
        self.swaps[-1].first = first
        self._wanted = None
        self._circle = self._circle.model_copy(update={"edges": tuple(sorted(graph.edges))})
        self._book.turn(first, self._circle)
        for member in graph.members:
            self._send(member, Turn(first, self._place(member, graph)))

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

    def _place(self, member: str, graph: Graph) -> dict[str, Any]:
        sources, targets = graph.sources(member), graph.targets(member)
        partners = tuple(other for other in graph.members if other in {*sources, *targets})
        weights = self._circle.weigh(graph)[member]
        before = Place.from_json(self._jobs[member].place)
        partners += tuple(before.rules.get("site", ()))
        return asdict(replace(before, sources=sources, targets=targets, weights=weights, partners=partners))
