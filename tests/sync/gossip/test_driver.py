"""Drivers on simulated time: bounds, deaths, members that come again, slow paths, patience; by seeds."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from testbed.planning.gaps import Violation
from testbed.planning.graphs import Graph, complete, double_ring, ring, uniform
from testbed.protocol import NodeConfiguration
from testbed.schemes.hop.member import HopMember, Tokens
from testbed.schemes.hop.reception import HopRules
from testbed.sync.errors import SyncError
from testbed.sync.gossip.effects import Participant, Send, Steps, TrainingMember, Until
from testbed.sync.gossip.inbox import GraphCommitted, GraphPrepared
from testbed.sync.gossip.message import Message
from testbed.sync.gossip.neighbours import Neighbours
from tests.schemes.hop.hops import hop_members, monitor_of, neighbours
from tests.schemes.participants import participant
from tests.sync.gossip.driven import ADDRESS, PATIENCE_S, Controller, DrivenMember, Network, World, no_change, rough
from tests.sync.gossip.loopback import around
from tests.sync.gossip.quadratic import Quadratics

pytestmark = pytest.mark.pure

SEEDS = (1, 2, pytest.param(3, marks=pytest.mark.long))
SIX = tuple(f"w{index}" for index in range(6))
EIGHT = tuple(f"w{index}" for index in range(8))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "rules",
    [
        HopRules(),
        HopRules(notify_ack=True),
        HopRules(max_ig=3, backup=1),
        HopRules(max_ig=4, staleness=2),
        HopRules(max_ig=4, backup=1, max_jump=4, quantile=0.5),
        HopRules(max_ig=4, staleness=3, max_jump=4, parallel=True),
    ],
)
def test_bounds_hold_as_members_enter_their_iterations(rules: HopRules, seed: int) -> None:
    """A member reports its iteration before it sends on, so all members' reports are in the order of events."""
    graph = double_ring(EIGHT)
    monitor = monitor_of(graph, rules)
    network = rough(seed)
    usual = network.step_s
    network.step_s = lambda name, iteration: 0.02 if name == "w3" else usual(name, iteration)
    problem = Quadratics(EIGHT, Random(1))
    violations: list[Violation] = []
    world = World(network, problem.change, lambda name, entered: violations.extend(monitor.advance(name, entered)))
    world.start(hop_members(graph, rules, 40, problem.start), around(graph), 3)
    world.run()
    assert world.errors() == {} and violations == []
    assert set(monitor.iterations.values()) == {40}
    assert max(monitor.widest.values()) >= 1


#: Of the protocols below, in place of those that are published for models of another size.
OPTIONS: dict[str, dict[str, Any]] = {
    "fedasync": {"every": 2},
    "halos": {"accumulate": 6, "site": {"momentum": 0.5, "buffer": 6}, "overall": {"learning_rate": 0.5}},
    "decoupled_diloco": {"every": 2, "fragments": 1, "quorum": 4, "merge": "mean"},
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("protocol", ["sgp", "adpsgd", "prague", "netmax", "fedasync", "decoupled_diloco", "halos"])
def test_other_protocols_come_near_the_common_optimum(protocol: str, seed: int) -> None:
    graph = ring(SIX) if protocol in ("sgp", "adpsgd") else complete(SIX)
    problem, weights = Quadratics(SIX, Random(1)), uniform(graph)
    active = graph.sides()[0] if protocol == "adpsgd" else ()
    world = World(rough(seed), problem.change)
    participants: dict[str, Participant] = {}
    for name in SIX:
        rules = {
            "active": name in active,
            "generator": "w0",
            "server": "w0",
            "syncer": "w0",
            "centre": "w0",
            "sites": [],
            "most": len(SIX) - 1,
        }
        near = graph.sources(name), graph.targets(name), weights[name], around(graph)[name]
        place = NodeConfiguration(protocol, *near, rules)
        start, options = problem.start[name], OPTIONS.get(protocol, {})
        participants[name] = participant(protocol, name, SIX, place, start, 150, clock=world.time.monotonic, **options)
    world.start(participants, around(graph), 3)
    world.run()
    assert world.errors() == {}
    apart = max(problem.distance(one) for one in problem.start.values())
    assert max(problem.distance(one.model) for one in participants.values()) < 0.3 * apart


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "rules", [HopRules(), HopRules(max_ig=3, backup=1, max_jump=4), HopRules(max_ig=4, staleness=2)]
)
def test_two_members_die_and_the_others_finish(rules: HopRules, seed: int) -> None:
    graph = double_ring(EIGHT)
    problem = Quadratics(EIGHT, Random(1))
    members = hop_members(graph, rules, 60, problem.start)
    world = World(rough(seed), problem.change)
    world.start(members, around(graph), 3, survives=True)
    controller = Controller(world, {"w2": 10, "w5": 20})
    world.run()
    assert world.errors().keys() == {"w2", "w5"} == set(controller.died)
    assert all(members[name].iteration == 60 for name in EIGHT if name not in controller.died)


class LateController(Controller):
    """Removes a lost member when another one reports the loss, and not before."""

    def __init__(self, world: World, dying: dict[str, int]) -> None:
        super().__init__(world, dying)
        self.reports: list[tuple[str, str]] = []
        for member in world.members.values():
            member.follow.lost = partial(self._lost, member.name)  # type: ignore[method-assign]

    def cut(self, member: DrivenMember, dead: str) -> None:
        """Wait for a report."""

    def _lost(self, by: str, peer: str, why: str) -> None:
        self.reports.append((by, peer))
        for member in self.others():
            self._world.later(partial(super().cut, member, peer))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_peer_that_the_controller_does_not_remove_is_reported(seed: int) -> None:
    graph = double_ring(EIGHT)
    world = World(rough(seed))
    members = hop_members(graph, HopRules(max_ig=3, backup=1), 60)
    world.start(members, around(graph), 1, survives=True)
    controller = LateController(world, {"w2": 10})
    world.run()
    assert controller.reports and {peer for _, peer in controller.reports} == {"w2"}
    assert world.errors().keys() == {"w2"}
    assert all(members[name].iteration == 60 for name in EIGHT if name != "w2")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lost_member_is_named_with_the_iteration_where_nobody_goes_on_without_it(seed: int) -> None:
    graph = ring(SIX[:4])
    world = World(rough(seed))
    world.start(hop_members(graph, HopRules(), 10**9), around(graph), 1)
    Controller(world, {"w2": 5}).cut = lambda member, dead: None  # type: ignore[method-assign]
    world.run()
    errors = {name: str(error) for name, error in world.errors().items()}
    assert errors.keys() == set(graph.members)
    # A neighbour of w2 may notice the end of w2's other neighbour, which w2's end caused, before it notices w2's.
    assert all(f"{name}, iteration " in errors[name] and " is gone" in errors[name] for name in ("w0", "w1", "w3"))
    assert any("w2 is gone" in error for error in errors.values())
    assert max(member.ended_s for member in world.members.values()) < 0.1 * PATIENCE_S


class Readmission(Controller):
    """Lets a member that died come again in an iteration that nobody is in yet."""

    def __init__(self, world: World, graph: Graph, rules: HopRules, iterations: int) -> None:
        super().__init__(world, {"w2": 10})
        self.comes: HopMember | None = None
        self._graph = graph
        self._make = lambda first: HopMember(
            neighbours(graph, "w2", uniform(graph)), rules, torch.zeros(3), iterations, first
        )
        for member in self.others():
            member.follow.promised = lambda end, member=member: self._promised(member, end)  # type: ignore[method-assign]

    def cut(self, member: DrivenMember, dead: str) -> None:
        super().cut(member, dead)
        self._world.later(lambda: member.inbox.put(GraphPrepared(3)))

    def _promised(self, member: DrivenMember, end: int) -> None:
        member.follow.promises.append(end)
        if all(other.follow.promises for other in self.others()) and self.comes is None:
            first = max(other.follow.promises[-1] for other in self.others())
            self.comes = self._make(first)
            for other in self.others():
                place = neighbours(self._graph, other.name, uniform(self._graph))
                committed = GraphCommitted(first, place, {"w2": ADDRESS})
                self._world.later(lambda other=other, committed=committed: other.inbox.commit(committed))
            self._world.come(self.comes, around(self._graph)["w2"], first)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "rules", [HopRules(max_ig=2), HopRules(max_ig=3, backup=1, max_jump=4), HopRules(max_ig=4, staleness=2)]
)
def test_a_member_that_died_comes_again_where_the_others_are(rules: HopRules, seed: int) -> None:
    """A member that comes begins with its neighbours' mean, and every queue has the tokens that it should."""
    graph = double_ring(EIGHT)
    members = hop_members(graph, rules, 40, dict.fromkeys(EIGHT, torch.ones(3)))
    world = World(rough(seed))
    world.start(members, around(graph), 3, survives=True)
    controller = Readmission(world, graph, rules, 40)
    world.run()
    assert world.errors() == {} and controller.comes is not None
    members["w2"] = controller.comes
    assert world.members["w2"].follow.entered[0] == world.members["w2"].generation > 10
    for name, member in members.items():
        assert torch.allclose(member.parameters, torch.ones(3)) and member.iteration == 40
        assert member.credits and {member.credits.held(giver) for giver in graph.targets(name)} == {rules.max_ig}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rules", [HopRules(max_ig=5, staleness=2), HopRules(max_ig=5, backup=1)])
def test_a_slow_path_is_spared_the_updates_that_became_useless_as_they_waited(rules: HopRules, seed: int) -> None:
    """A model takes five steps on w0's path to w1: w1 goes on by older updates, or without them, to the end."""
    graph, elements = double_ring(EIGHT), 1000
    network = rough(seed)
    network.rate = lambda source, target: 4 * elements / 0.015 if (source, target) == ("w0", "w1") else 4e9
    members = hop_members(graph, rules, 40, dict.fromkeys(EIGHT, torch.ones(elements)))
    world = World(network)
    world.start(members, around(graph), elements)
    world.run()
    assert world.errors() == {}
    slow = world.members["w0"].mailbox
    sent = {to: slow.sent_bytes[to] // (4 * elements) for to in graph.targets("w0")}
    assert slow.suppressed >= 5 and sent["w1"] <= 40 - slow.suppressed
    assert all(member.mailbox.suppressed == 0 for name, member in world.members.items() if name != "w0")
    assert all(torch.allclose(member.parameters, torch.ones(elements)) for member in members.values())


def test_a_member_ends_without_sending_models_that_nobody_needs_any_more() -> None:
    """Two models are under way to w1 and one waits when w1 ends, which closes its connections amid a model."""
    graph, elements = double_ring(EIGHT), 50_000
    network = rough(0)
    network.rate = lambda source, target: 4 * elements / 0.5 if (source, target) == ("w0", "w1") else 4e9
    world = World(network)
    members = hop_members(graph, HopRules(max_ig=5, backup=1), 40, dict.fromkeys(EIGHT, torch.ones(elements)))
    world.start(members, around(graph), elements)
    world.run()
    assert world.errors() == {}


def test_waits_are_counted_by_the_peer_that_ended_them() -> None:
    """w0 takes 30 ms for a step, the others nothing: w1 waits for w0 that long in each iteration, and not for w2."""
    graph = ring(SIX[:4])
    network = Network(Random(1), lambda name, iteration: 0.03 if name == "w0" else 0.0)
    world = World(network, no_change)
    world.start(hop_members(graph, HopRules(), 20), around(graph), 1)
    world.run()
    waits = world.members["w1"].follow.waits
    by_peer = {peer: sum(waited for waited, by in waits if by == peer) for peer in ("w0", "w2")}
    assert by_peer["w0"] == pytest.approx(20 * 0.03, rel=0.2)
    assert by_peer["w2"] < 0.1 * by_peer["w0"]


class Silent(TrainingMember):
    """Waits for something that nobody sends, until its own reminder comes or for ever."""

    reminder_s: float | None = None
    reminded = False

    @property
    def patience(self) -> int:
        return 3

    def program(self) -> Steps[None]:
        if self.reminder_s is not None:
            yield Send(self.name, Tokens(1), after_s=self.reminder_s)
        yield Until(lambda: self.reminded, "word of nobody")

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        raise AssertionError(f"{message} of {sender}")


def alone(member: TrainingMember) -> tuple[World, float]:
    """Drive a member to its end, and return how long that took."""
    world = World(Network(Random(1)))
    world.start({member.name: member}, {member.name: ()}, 1)
    world.run()
    return world, world.members[member.name].ended_s


def test_a_wait_ends_after_as_many_iterations_of_the_others_as_the_participant_allows() -> None:
    world, ended_s = alone(Silent("a", torch.zeros(1)))
    assert isinstance(world.members["a"].error, SyncError)
    assert str(world.members["a"].error) == f"a, iteration 0: waited {3 * PATIENCE_S:g} s for word of nobody"
    assert ended_s == pytest.approx(3 * PATIENCE_S, abs=0.02)


class Reminded(Silent):
    """Goes on at its reminder."""

    reminder_s = 7.0

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        self.reminded = True
        return ()


def test_a_reminder_comes_after_its_time() -> None:
    world, ended_s = alone(Reminded("a", torch.zeros(1)))
    assert world.errors() == {} and ended_s == pytest.approx(7.0, abs=0.02)


class Stepping(Silent):
    """Makes one local step."""

    def program(self) -> Steps[None]:
        yield from self.local_step(0)


@pytest.mark.parametrize("error", [ValueError("batch sizes differ"), RuntimeError("out of memory")])
def test_an_error_of_a_local_step_is_raised_as_it_is(error: Exception) -> None:
    world = World(Network(Random(1)), Mock(side_effect=error))
    world.start({"a": Stepping("a", torch.zeros(1))}, {"a": ()}, 1)
    world.run()
    assert world.errors() == {"a": error}


class Replaced(Reminded):
    """Ends after `reminder_s`, and goes on without a member that died and with one that joins."""

    def __init__(self, name: str, reminder_s: float) -> None:
        super().__init__(name, torch.zeros(1))
        self.reminder_s = reminder_s

    def remove(self, gone: str) -> Iterable[Send]:
        return ()

    def commit(self, iteration: int, neighbours: Neighbours) -> Iterable[Send]:
        return ()


def test_a_member_that_had_ended_and_joins_again_is_waited_for_once_more() -> None:
    world, graph = World(Network(Random(1))), complete("abc")
    world.start(
        {name: Replaced(name, end_s) for name, end_s in (("a", 4), ("b", 0), ("c", 5))}, around(graph), 1, survives=True
    )

    def die() -> None:
        world.members["b"].kill()
        for name in "ac":
            world.members[name].inbox.cut("b")

    def come() -> None:
        for name in "ac":
            place = neighbours(graph, name, uniform(graph))
            world.members[name].inbox.commit(GraphCommitted(1, place, {"b": ADDRESS}))
        world.come(Replaced("b", 10), "ac", 1)

    world.time.call_later(1.0, die)
    world.time.call_later(2.0, come)
    world.run()
    assert world.errors() == {}
    assert all(member.ended_s > 12.0 for member in world.members.values())
