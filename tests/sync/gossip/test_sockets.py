"""The same protocol objects and drivers as on simulated time (test_drivers.py), over sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random

import pytest
import torch
from torch import Tensor

from testbed.planning.gaps import GapMonitor, Violation, gap_bounds
from testbed.planning.graphs import complete, double_ring, metropolis, ring, uniform
from testbed.protocol import NodeConfiguration
from testbed.schemes.hop.member import HopMember
from testbed.schemes.hop.reception import HopRules
from testbed.sync.errors import FrameError, SyncError
from testbed.sync.gossip.driver import LocalStep
from testbed.sync.gossip.effects import Participant
from testbed.sync.gossip.inbox import GraphCommitted, GraphPrepared, Inbox, PeerCut
from testbed.sync.gossip.message_codec import MessageCodec, PartHeader
from testbed.sync.transport.frame import Frame, Greeting
from testbed.sync.transport.listener import Received
from tests.schemes.hop.hops import hop_members, neighbours
from tests.schemes.participants import participant
from tests.sync.gossip.loopback import Gate, Node, around, no_change, start
from tests.sync.gossip.quadratic import Quadratics
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.local

MEMBERS = tuple(f"w{index}" for index in range(6))


def run(nodes: dict[str, Node]) -> None:
    for node in nodes.values():
        node.join()
    errors = {name: node.error for name, node in nodes.items() if node.error}
    assert not errors


def of(
    problem: Quadratics, enter: Callable[[str, int], None] = lambda name, iteration: None
) -> Callable[[str], LocalStep]:
    def step_of(name: str) -> LocalStep:
        def step(parameters: Tensor, iteration: int) -> Tensor:
            enter(name, iteration)
            return problem.change(name, iteration, parameters)

        return step

    return step_of


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("rules", [HopRules(), HopRules(max_ig=2), HopRules(notify_ack=True, parallel=True)])
def test_modes_that_wait_for_all_average_as_the_matrix_does(rules: HopRules, streams: int) -> None:
    graph = ring(MEMBERS)
    problem, weights = Quadratics(graph.members, Random(1)), metropolis(graph)
    expected = dict(problem.start)
    for k in range(10):
        expected = {
            member: sum((weight * expected[other] for other, weight in weights[member].items()), torch.zeros(3))
            + problem.change(member, k, expected[member])
            for member in graph.members
        }
    members = hop_members(graph, rules, 10, problem.start, weights)
    run(start(members, around(graph), 3, of(problem), streams=streams))
    for name, member in members.items():
        assert torch.allclose(member.parameters, expected[name], atol=1e-5)


def test_the_monitor_tells_a_member_that_takes_tokens_it_was_not_given() -> None:
    graph, rules = ring(MEMBERS[:4]), HopRules(max_ig=1, backup=1)
    monitor = GapMonitor(graph.members, gap_bounds(graph, max_ig=1, backup=1))
    guard, ahead = threading.Lock(), threading.Event()
    violations: list[Violation] = []

    def tell(name: str, iteration: int) -> None:
        with guard:
            violations.extend(monitor.advance(name, iteration))
        if (name, iteration) == ("w0", 2):
            ahead.set()

    def behind(name: str, k: int) -> None:
        """Keep w3 in its first iteration until w0 is one further than it may be.

        That takes w1 and w2 a token each, which they have from the beginning.
        """
        assert (name, k) != ("w3", 0) or ahead.wait(PATIENCE_S)

    members = hop_members(graph, rules, 20)
    credits = members["w0"].credits
    assert credits
    for giver in graph.targets("w0"):
        credits.put(giver, 100)
    for member in members.values():
        member.parameters = torch.zeros(3)
    run(start(members, around(graph), 3, of(Quadratics(graph.members, Random(1)), behind), tell))
    assert any(violation.ahead == "w0" for violation in violations)


def test_a_model_of_many_frames_arrives_whole_and_tokens_overtake_it() -> None:
    graph, elements = ring(MEMBERS[:4]), 200_000
    begin = {name: torch.randn(elements, generator=torch.Generator().manual_seed(i)) for i, name in enumerate("abcd")}
    begin = dict(zip(graph.members, begin.values(), strict=True))
    members = hop_members(graph, HopRules(max_ig=2), 60, begin, metropolis(graph))
    nodes = start(members, around(graph), elements, no_change, streams=2)
    run(nodes)
    mean = torch.stack(list(begin.values())).mean(0)
    assert all(torch.allclose(member.parameters, mean, atol=1e-5) for member in members.values())
    assert nodes["w0"].mailbox.sent_bytes == {"w1": 60 * 4 * elements, "w3": 60 * 4 * elements}


def test_a_lost_member_is_named_with_the_iteration() -> None:
    graph = ring(MEMBERS[:4])
    members = hop_members(graph, HopRules(), 10**9)
    nodes = start(members, around(graph), 1, no_change)
    until(lambda: len(nodes["w0"].follow.entered) >= 5)
    nodes["w2"].kill()
    for node in nodes.values():
        node.join()
    # A neighbour of w2 may notice the end of w2's other neighbour, which w2's end caused, before it notices w2's.
    errors = {name: str(nodes[name].error) for name in ("w1", "w3")}
    assert all(f"{name}, iteration " in error and " is gone" in error for name, error in errors.items())
    assert any("w2 is gone" in error for error in errors.values())


@pytest.mark.parametrize(
    "rules", [HopRules(), HopRules(max_ig=3, backup=1, max_jump=4), HopRules(max_ig=4, staleness=2)]
)
def test_members_go_over_to_another_graph_and_back(rules: HopRules) -> None:
    before, after = ring(MEMBERS), complete(MEMBERS)
    problem = Quadratics(before.members, Random(1))
    members = hop_members(before, rules, 60, problem.start)
    gate = Gate(12)

    nodes = start(members, around(before), 3, of(problem, lambda name, iteration: gate.enter(iteration)))
    firsts: list[int] = []
    for number, graph in enumerate((after, before), 1):
        until(lambda: min(max(node.follow.entered, default=0) for node in nodes.values()) >= 12 * number)  # noqa: B023
        for node in nodes.values():
            node.inbox.put(GraphPrepared(3))
        until(lambda: min(len(node.follow.promises) for node in nodes.values()) >= number)  # noqa: B023
        firsts.append(max(node.follow.promises[-1] for node in nodes.values()))
        for name, node in nodes.items():
            node.inbox.put(GraphCommitted(firsts[-1], neighbours(graph, name, uniform(graph))))
        gate.open(12 * (number + 1))
        until(lambda: min(node.follow.entered[-1] for node in nodes.values()) >= firsts[-1])
    gate.open()
    run(nodes)
    assert all(member.iteration == 60 for member in members.values())
    sent = {to: nodes["w0"].mailbox.sent_bytes[to] // 12 for to in ("w1", "w3")}
    assert 0 < sent["w3"] <= firsts[1] - firsts[0] and sent["w1"] > sent["w3"]


def test_a_member_that_died_comes_again_where_the_others_are() -> None:
    """A member that comes begins with its neighbours' mean, and every queue has the tokens that it should."""
    graph = double_ring(tuple(f"w{index}" for index in range(8)))
    rules, weights = HopRules(max_ig=3, backup=1, max_jump=4), uniform(graph)
    members = hop_members(graph, rules, 80, dict.fromkeys(graph.members, torch.ones(3)))

    dies, comes = Gate(10), Gate(30)

    def gated(name: str) -> LocalStep:
        def step(parameters: Tensor, iteration: int) -> Tensor:
            (dies if name == "w2" else comes).enter(iteration)
            return torch.zeros(3)

        return step

    nodes = start(members, around(graph), 3, gated, survives=True)
    until(lambda: max(nodes["w2"].follow.entered, default=0) >= 10)
    nodes["w2"].kill()
    dies.open()
    nodes["w2"].join()
    others = {name: node for name, node in nodes.items() if name != "w2"}
    for node in others.values():
        node.inbox.cut("w2")
        node.inbox.put(GraphPrepared(3))
    until(lambda: all(node.follow.promises for node in others.values()))
    first = max(node.follow.promises[-1] for node in others.values())
    comer = nodes["w2"] = Node("w2", graph.members, 3)
    for name, node in others.items():
        node.inbox.commit(GraphCommitted(first, neighbours(graph, name, weights), {"w2": comer.address}))
    comes.open()
    members["w2"] = HopMember(neighbours(graph, "w2", weights), rules, torch.zeros(3), 80, first)
    roster = {name: node.address for name, node in nodes.items()}
    comer.start(
        members["w2"], around(graph)["w2"], roster, gated("w2"), lambda k: None, survives=True, generation=first
    )
    run(nodes)
    assert comer.follow.entered[0] == first
    for name, member in members.items():
        assert torch.allclose(member.parameters, torch.ones(3)) and member.iteration == 80
        assert member.credits and {member.credits.held(giver) for giver in graph.targets(name)} == {rules.max_ig}


def test_what_a_dead_member_left_on_its_way_is_not_taken_for_what_it_sends_when_it_comes_again() -> None:
    inbox = Inbox(MessageCodec(MEMBERS, 1))
    token = Received("w1", Frame(PartHeader(3, 0, 0, 1, 0.0, 0).pack(), 0), memoryview(b""), 0, 0.0)
    before = inbox.receiver(Greeting("w1", 0, 0, 0))
    inbox.cut("w1")
    with pytest.raises(FrameError) as caught:
        before.take(token)
    assert (caught.value.rule, caught.value.member) == ("cut", "w1")
    before.closed("w1", 0, "")
    assert isinstance(inbox.take(0), PeerCut) and inbox.take(0) is None
    with pytest.raises(FrameError) as caught:
        inbox.receiver(Greeting("w1", 0, 0, 7))
    assert (caught.value.rule, caught.value.member, caught.value.given) == ("unknown-generation", "w1", 7)
    inbox.commit(GraphCommitted(7, None, {"w1": ("127.0.0.1", 4000)}))
    inbox.receiver(Greeting("w1", 0, 0, 7)).take(token)


def test_a_protocol_with_one_graph_ends_when_it_is_to_go_over_to_another() -> None:
    graph = ring(MEMBERS[:4])
    weights = uniform(graph)
    participants: dict[str, Participant] = {}
    for name in graph.members:
        place = NodeConfiguration(
            "sgp", graph.sources(name), graph.targets(name), weights[name], around(graph)[name], {}
        )
        participants[name] = participant("sgp", name, graph.members, place, torch.zeros(1), 10**9)
    nodes = start(participants, around(graph), 1, no_change)
    # Who ends before others have connected to it is knocked at until the timeout.
    until(lambda: all(len(node.follow.entered) >= 3 for node in nodes.values()))
    nodes["w0"].inbox.put(GraphPrepared(3))
    for node in nodes.values():
        node.join()
    error = nodes["w0"].error
    assert isinstance(error, SyncError) and (error.rule, error.member) == ("participant", "w0")
