"""How members come to another graph: what they are asked and told, and what holds while they turn."""

from __future__ import annotations

from math import inf

import pytest
from msgspec.structs import asdict

from testbed.controller.gossip.iteration_log import IterationLog
from testbed.controller.gossip.topology_changes import AHEAD, TopologyChanges
from testbed.controller.model.actions import Actions, Contradiction, Tell
from testbed.controller.model.spec import GossipGraph
from testbed.planning.gaps import Violation
from testbed.planning.graphs import GraphError, ring, uniform
from testbed.protocol import AbortGraph, CommitGraph, ControlMessage, Job, NodeConfiguration, PrepareGraph, PromiseGraph
from testbed.simulation.event_queue import SimulatedClocks
from tests.controller.gossip.test_iteration_log import entered

pytestmark = pytest.mark.pure

MEMBERS = tuple("abcdef")
ROUNDS = 50


class Told:
    """A graph of six, and what each was sent."""

    def __init__(self, survives: bool = True, backup: int = 0, fixed: bool = False) -> None:
        made = ring(MEMBERS)
        graph = GossipGraph(edges=tuple(sorted(made.edges)), survives=survives, backup=backup, max_ig=4, fixed=fixed)
        weights = uniform(made)
        self.sent: list[tuple[str, ControlMessage]] = []
        self.came: list[NodeConfiguration] = []
        jobs = {}
        for name in MEMBERS:
            sources = made.sources(name)
            place = asdict(NodeConfiguration("hop", sources, sources, weights[name], sources, {"max_ig": 4}))
            jobs[name] = Job(ROUNDS, scheme="hop", assignment=place)
        self.book = IterationLog(MEMBERS, graph)
        self.changes = TopologyChanges(graph, jobs, self.book, SimulatedClocks(1.7e9))

    def send(self, actions: Actions) -> None:
        for action in actions:
            assert isinstance(action, Tell)
            self.sent.append((action.member, action.message))

    def prepare(self, kind: str) -> None:
        self.send(self.changes.prepare(kind))

    def prepare_join(self, comer: str) -> None:
        self.send(self.changes.prepare_join(comer, ("10.0.0.2", 4000)))

    def promise(self, name: str, end: int) -> None:
        def answered() -> Actions:
            place = yield from self.changes.promised(PromiseGraph(name, end))
            self.came += [place] if place else []

        self.send(answered())

    def take(self) -> dict[str, ControlMessage]:
        sent, self.sent = dict(self.sent), []
        return sent

    def enter(self, iteration: int, at_s: float) -> list[str]:
        return [str(one) for name in self.book.members for one in self.book.add(*entered(name, iteration, at_s))]


def test_all_turn_in_the_latest_iteration_that_was_promised() -> None:
    told = Told()
    told.prepare("complete")
    assert told.take() == dict.fromkeys(MEMBERS, PrepareGraph(AHEAD))
    for number, name in enumerate(MEMBERS):
        told.promise(name, 10 + number)
    turns = told.take()
    assert {turn.iteration for turn in turns.values() if isinstance(turn, CommitGraph)} == {15}
    assert isinstance(turns["a"], CommitGraph)
    place = turns["a"].place
    assert place.sources == place.targets == place.partners == tuple("bcdef")
    assert place.rules == {"max_ig": 4} and sum(place.weights.values()) == pytest.approx(1)


def test_one_swap_after_the_other() -> None:
    told = Told()
    told.prepare("complete")
    with pytest.raises(GraphError) as caught:
        told.prepare("ring")
    assert caught.value.rule == "busy"
    for name in MEMBERS:
        told.promise(name, 5)
    with pytest.raises(GraphError) as caught:
        told.prepare("ring")
    assert caught.value.rule == "busy"
    for iteration in range(1, 6):
        told.enter(iteration, 10.0 + iteration)
    told.prepare("ring")
    assert [swap.first for swap in told.changes.swaps] == [5, None]


@pytest.mark.parametrize("end", ["death", "training"])
def test_members_are_released_when_a_swap_will_not_be(end: str) -> None:
    told = Told()
    told.prepare("complete")
    told.take()
    if end == "death":
        told.book.remove("b", "killed")
        told.send(told.changes.died("b"))
        assert told.take() == dict.fromkeys("acdef", AbortGraph())
    else:
        for name in MEMBERS:
            told.promise(name, ROUNDS + 1)
        assert told.take() == dict.fromkeys(MEMBERS, AbortGraph())
    assert told.changes.swaps[-1].given_up and told.changes.swaps[-1].first is None
    if end == "death":
        told.promise("c", 3)  # it was asked before the others were released
    else:
        with pytest.raises(Contradiction) as caught:
            told.promise("c", 3)
        assert (caught.value.rule, caught.value.member) == ("not-asked", "c")
    assert told.take() == {}


@pytest.mark.parametrize(
    ("told", "kind", "broken"),
    [
        (Told(survives=False), "complete", ("protocol", None)),
        (Told(fixed=True), "complete", ("protocol", None)),
        (Told(), "double-ring", (None, "members")),
        (Told(), "star", (None, "family")),
        (Told(backup=3), "ring", ("backup", None)),
    ],
)
def test_a_graph_that_cannot_be_is_refused(told: Told, kind: str, broken: tuple[str | None, str | None]) -> None:
    with pytest.raises(GraphError) as caught:
        told.prepare(kind)
    assert (caught.value.rule, caught.value.field) == broken
    assert told.sent == []


def test_a_member_that_comes_again_stands_where_it_stood_and_begins_where_the_others_turn() -> None:
    told = Told()
    told.enter(1, 10.0)
    told.book.remove("b", "killed")
    told.prepare_join("b")
    assert told.take() == dict.fromkeys("acdef", PrepareGraph(AHEAD))
    for name in "acdef":
        assert not told.came
        told.promise(name, 4)
    turns = told.take()
    assert turns.keys() == set("acdef")
    assert all(isinstance(turn, CommitGraph) and turn.roster == {"b": ("10.0.0.2", 4000)} for turn in turns.values())
    [place] = told.came
    assert place.first == 4 and set(place.sources) == {"a", "c"}
    assert told.book.members == MEMBERS and told.book.lowest == 1
    assert [(swap.joins, swap.first) for swap in told.changes.swaps] == [("b", 4)]
    # It is in 4 from now on; the others are not ahead of it before they have passed that.
    for iteration in (2, 3, 4):
        broken = [breach for name in "acdef" for breach in told.book.add(*entered(name, iteration, 10.0 + iteration))]
        assert not broken
    assert not told.book.judge(inf)
    for iteration in (5, 6):
        assert not told.book.add(*entered("a", iteration, 20.0))
    assert Violation("a", "b", 2, 1) in told.book.judge(inf)


def test_answers_to_a_question_that_was_taken_back_count_for_no_other() -> None:
    told = Told()
    told.prepare("complete")
    told.book.remove("b", "killed")
    told.send(told.changes.died("b"))
    told.prepare_join("b")
    for name in "acdef":
        told.promise(name, 3)  # to the first, from which it was released since
    assert not told.came
    for name in "acdef":
        told.promise(name, 5)
    assert [place.first for place in told.came] == [5]


def test_nobody_is_asked_when_somebody_is_at_its_end() -> None:
    told = Told()
    told.prepare("complete")
    told.take()
    told.send(told.changes.close("a is at its end"))
    assert told.take() == dict.fromkeys(MEMBERS, AbortGraph())
    with pytest.raises(GraphError) as caught:
        told.prepare("complete")
    assert caught.value.rule == "late"


def test_each_graph_keeps_its_bounds() -> None:
    """a and d are three hops apart in the ring and one in the complete graph, with max_ig 1 in each."""
    complete = tuple(sorted((u, v) for u in MEMBERS for v in MEMBERS if u != v))
    book = IterationLog(MEMBERS, GossipGraph(edges=tuple(sorted(ring(MEMBERS).edges)), max_ig=1))
    book.change_graph(4, GossipGraph(edges=complete, max_ig=1))
    order = [*"abcef", *"abf", *"a"]  # to where the ring lets each go while d stays in 0
    iterations = dict.fromkeys(MEMBERS, 0)
    for number, name in enumerate(order):
        iterations[name] += 1
        assert not book.add(*entered(name, iterations[name], 10.0 + number / 100))
    # 4 is where the first graph is left: in it a is 4 ahead of d, where three hops allow 3. The second begins there.
    broken = [*book.add(*entered("a", 4, 20.0)), *book.judge(inf)]
    assert Violation("a", "d", 4, 3) in broken
    pairs = book.to_json()["pairs"]
    assert {pair["since"] for pair in pairs} == {0}
