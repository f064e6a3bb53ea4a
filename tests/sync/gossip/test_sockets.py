"""The same protocol objects as in simulated time, over sockets: results, bounds, errors, what is left out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from testbed.planning.graphs import Graph, complete, double_ring, gap_bounds, metropolis, ring, uniform
from testbed.planning.graphs.monitor import GapMonitor
from testbed.protocol import NodeConfiguration
from testbed.schemes.hop.member import HopMember
from testbed.schemes.hop.messages import HopUpdate
from testbed.schemes.hop.rules import HopRules
from testbed.sync.errors import FrameError, SyncError
from testbed.sync.gossip.driver import LocalStep
from testbed.sync.gossip.effects import Participant, Send
from testbed.sync.gossip.header import PartHeader
from testbed.sync.gossip.inbox import Cut, GraphCommitted, GraphPrepared, Inbox
from testbed.sync.gossip.message import Message
from testbed.sync.gossip.message_codec import MessageCodec
from testbed.sync.transport.frame import Frame, Greeting
from testbed.sync.transport.listener import Received
from tests.schemes.hop.hops import hop_members, monitor_of, neighbours
from tests.schemes.participants import participant
from tests.sync.gossip.loopback import PATIENCE_S, Gate, Node, no_change, start
from tests.sync.gossip.quadratic import Quadratics
from tests.waiting import until

MEMBERS = tuple(f"w{index}" for index in range(6))


def around(graph: Graph) -> dict[str, tuple[str, ...]]:
    return {name: tuple({*graph.sources(name), *graph.targets(name)}) for name in graph.members}


def run(nodes: dict[str, Node]) -> None:
    for node in nodes.values():
        node.join()
    errors = {name: node.error for name, node in nodes.items() if node.error}
    assert not errors


def of(problem: Quadratics, seconds: Callable[[str, int], float] = lambda name, k: 0.0) -> Callable[[str], LocalStep]:
    def step_of(name: str) -> LocalStep:
        def step(parameters: Tensor, iteration: int) -> Tensor:
            time.sleep(seconds(name, iteration))
            return problem.change(name, iteration, parameters)

        return step

    return step_of


@pytest.mark.local
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


@pytest.mark.physics
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
def test_bounds_hold_as_members_enter_their_iterations(rules: HopRules) -> None:
    """What a member tells of its iterations before it sends on is in the order in which things happened."""
    graph = double_ring(tuple(f"w{index}" for index in range(8)))
    monitor, guard, draws = monitor_of(graph, rules), threading.Lock(), Random(3)
    slow = {(name, k) for name in graph.members for k in range(40) if draws.random() < 0.1}

    def tell(name: str, iteration: int) -> None:
        with guard:
            monitor.advance(name, iteration)

    def seconds(name: str, k: int) -> float:
        return 0.02 if (name, k) in slow or name == "w3" else 0.002

    problem = Quadratics(graph.members, Random(1))
    members = hop_members(graph, rules, 40, problem.start)
    run(start(members, around(graph), 3, of(problem, seconds), tell))
    assert monitor.violations == ()
    assert set(monitor.iterations.values()) == {40}
    assert max(monitor.widest.values()) >= 1


@pytest.mark.local
def test_the_monitor_tells_a_member_that_takes_tokens_it_was_not_given() -> None:
    graph, rules = ring(MEMBERS[:4]), HopRules(max_ig=1, backup=1)
    monitor = GapMonitor(graph.members, gap_bounds(graph, max_ig=1, backup=1))
    guard, ahead = threading.Lock(), threading.Event()

    def tell(name: str, iteration: int) -> None:
        with guard:
            monitor.advance(name, iteration)
        if (name, iteration) == ("w0", 2):
            ahead.set()

    def behind(name: str, k: int) -> float:
        """w3 stays in its first iteration until w0 is one further than it may be, which takes w1 and w2 a token each
        that they have from the beginning."""
        assert (name, k) != ("w3", 0) or ahead.wait(PATIENCE_S)
        return 0.0

    members = hop_members(graph, rules, 20)
    credits = members["w0"].credits
    assert credits
    for giver in graph.targets("w0"):
        credits.put(giver, 100)
    for member in members.values():
        member.parameters = torch.zeros(3)
    run(start(members, around(graph), 3, of(Quadratics(graph.members, Random(1)), behind), tell))
    assert any(violation.ahead == "w0" for violation in monitor.violations)


class Abreast:
    """Lets no member get far ahead of another by the processor's doing. One whose thread stands still while the others
    come to their end is alone after it, and drifts to its own optimum: after 1.5 s it was 0.31 apart, as if nothing had
    come from others. MOST_S is for a partner that cannot go on before this member's step is done."""

    PAUSE_S, MOST_S = 0.003, 0.2

    def __init__(self, members: Sequence[str], ahead: int) -> None:
        self._ahead = ahead
        self._at = dict.fromkeys(members, 0)
        self._changed = threading.Condition()

    def wait(self, name: str, k: int) -> float:
        with self._changed:
            self._at[name] = k
            self._changed.notify_all()
            self._changed.wait_for(lambda: k <= min(self._at.values()) + self._ahead, self.MOST_S)
        return self.PAUSE_S


#: Of the protocols below, in place of those that are published for models of another size.
OPTIONS: dict[str, dict[str, Any]] = {
    "fedasync": {"every": 2},
    "halos": {"accumulate": 6, "site": {"momentum": 0.5, "buffer": 6}, "overall": {"learning_rate": 0.5}},
    "decoupled_diloco": {"every": 2, "fragments": 1, "quorum": 4, "merge": "mean"},
}


@pytest.mark.physics
@pytest.mark.parametrize("protocol", ["sgp", "adpsgd", "prague", "netmax", "fedasync", "decoupled_diloco", "halos"])
def test_other_protocols_come_near_the_common_optimum(protocol: str) -> None:
    graph = ring(MEMBERS) if protocol in ("sgp", "adpsgd") else complete(MEMBERS)
    problem, weights = Quadratics(graph.members, Random(1)), uniform(graph)
    active = graph.sides()[0] if protocol == "adpsgd" else ()
    participants: dict[str, Participant] = {}
    for name in graph.members:
        rules = {
            "active": name in active,
            "generator": "w0",
            "server": "w0",
            "syncer": "w0",
            "centre": "w0",
            "sites": [],
        }
        near = graph.sources(name), graph.targets(name), weights[name], around(graph)[name]
        options = OPTIONS.get(protocol, {})
        place = NodeConfiguration(protocol, *near, rules)
        participants[name] = participant(protocol, name, graph.members, place, problem.start[name], 150, **options)
    abreast = Abreast(graph.members, 40 if protocol == "prague" else 5)  # partners of prague's wait for each other
    run(start(participants, around(graph), 3, of(problem, abreast.wait)))
    apart = max(problem.distance(one) for one in problem.start.values())
    assert max(problem.distance(one.model) for one in participants.values()) < 0.3 * apart


@pytest.mark.local
def test_a_model_of_many_frames_arrives_whole_and_tokens_overtake_it() -> None:
    graph, elements = ring(MEMBERS[:4]), 200_000
    begin = {name: torch.randn(elements, generator=torch.Generator().manual_seed(i)) for i, name in enumerate("abcd")}
    begin = dict(zip(graph.members, begin.values(), strict=True))
    members = hop_members(graph, HopRules(max_ig=2), 60, begin, metropolis(graph))
    nodes = start(members, around(graph), elements, no_change, streams=2)
    run(nodes)
    mean = torch.stack(list(begin.values())).mean(0)
    assert all(torch.allclose(member.parameters, mean, atol=1e-5) for member in members.values())
    assert nodes["w0"].queue.sent_bytes == {"w1": 60 * 4 * elements, "w3": 60 * 4 * elements}


@pytest.mark.local
def test_who_is_gone_is_named_with_the_iteration() -> None:
    graph = ring(MEMBERS[:4])
    members = hop_members(graph, HopRules(), 10**9)
    nodes = start(members, around(graph), 1, no_change)
    until(lambda: len(nodes["w0"].follow.entered) >= 5)
    nodes["w2"].kill()
    for node in nodes.values():
        node.join()
    # A neighbour of w2 may hear of the end of the other one, whom w2's took along, before it hears of w2's.
    errors = {name: str(nodes[name].error) for name in ("w1", "w3")}
    assert all(f"{name}, iteration " in error and " is gone" in error for name, error in errors.items())
    assert any("w2 is gone" in error for error in errors.values())


@pytest.mark.physics
@pytest.mark.parametrize(
    "rules", [HopRules(), HopRules(max_ig=3, backup=1, max_jump=4), HopRules(max_ig=4, staleness=2)]
)
def test_two_members_die_and_the_others_finish(rules: HopRules) -> None:
    graph = double_ring(tuple(f"w{index}" for index in range(8)))
    problem = Quadratics(graph.members, Random(1))
    members = hop_members(graph, rules, 60, problem.start)
    gates = {"w2": Gate(10), "w5": Gate(20)}  # where they are killed

    def seconds(name: str, k: int) -> float:
        if name in gates:
            gates[name].enter(k)
        return 0.003

    nodes = start(members, around(graph), 3, of(problem, seconds), survives=True)
    for number, dead in ((10, "w2"), (20, "w5")):
        until(lambda: max(nodes[dead].follow.entered, default=0) >= number)  # noqa: B023
        nodes[dead].kill()
        gates[dead].open()
        nodes[dead].join()
        for node in nodes.values():
            node.inbox.cut(dead)
    for node in nodes.values():
        node.join()
    assert {name for name, node in nodes.items() if node.error} == {"w2", "w5"}
    assert all(members[name].iteration == 60 for name in nodes if name not in ("w2", "w5"))


@pytest.mark.local
@pytest.mark.parametrize(
    "rules", [HopRules(), HopRules(max_ig=3, backup=1, max_jump=4), HopRules(max_ig=4, staleness=2)]
)
def test_members_go_over_to_another_graph_and_back(rules: HopRules) -> None:
    before, after = ring(MEMBERS), complete(MEMBERS)
    problem = Quadratics(before.members, Random(1))
    members = hop_members(before, rules, 60, problem.start)
    gate = Gate(12)

    def seconds(name: str, k: int) -> float:
        gate.enter(k)
        return 0.004

    nodes = start(members, around(before), 3, of(problem, seconds))
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
    sent = {to: nodes["w0"].queue.sent_bytes[to] // 12 for to in ("w1", "w3")}
    assert 0 < sent["w3"] <= firsts[1] - firsts[0] and sent["w1"] > sent["w3"]


@pytest.mark.physics
@pytest.mark.parametrize(
    "rules",
    [HopRules(max_ig=2), HopRules(max_ig=3, backup=1, max_jump=4), HopRules(max_ig=4, staleness=2)],
)
def test_a_member_that_died_comes_again_where_the_others_are(rules: HopRules) -> None:
    """It begins with what they have, not with what it brings, and every queue has the tokens that it should."""
    graph = double_ring(tuple(f"w{index}" for index in range(8)))
    weights = uniform(graph)
    members = hop_members(graph, rules, 80, dict.fromkeys(graph.members, torch.ones(3)))

    dies, comes = Gate(10), Gate(30)

    def slowly(name: str) -> LocalStep:
        def step(parameters: Tensor, iteration: int) -> Tensor:
            (dies if name == "w2" else comes).enter(iteration)
            time.sleep(0.004)
            return torch.zeros(3)

        return step

    nodes = start(members, around(graph), 3, slowly, survives=True)
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
        node.inbox.turn(GraphCommitted(first, neighbours(graph, name, weights), {"w2": comer.address}))
    comes.open()
    members["w2"] = HopMember(neighbours(graph, "w2", weights), rules, torch.zeros(3), 80, first)
    roster = {name: node.address for name, node in nodes.items()}
    comer.start(
        members["w2"], around(graph)["w2"], roster, slowly("w2"), lambda k: None, survives=True, generation=first
    )
    run(nodes)
    assert comer.follow.entered[0] == first
    for name, member in members.items():
        assert torch.allclose(member.parameters, torch.ones(3)) and member.iteration == 80
        assert member.credits and {member.credits.held(giver) for giver in graph.targets(name)} == {rules.max_ig}


@pytest.mark.local
def test_what_a_dead_member_left_on_its_way_is_not_taken_for_what_it_sends_when_it_comes_again() -> None:
    inbox = Inbox(MessageCodec(MEMBERS, 1))
    token = Received("w1", Frame(PartHeader(3, 0, 0, 1, 0.0, 0).pack(), 0), memoryview(b""), 0, 0.0)
    before = inbox.receiver(Greeting("w1", 0, 0, 0))
    inbox.cut("w1")
    with pytest.raises(FrameError) as caught:
        before.take(token)
    assert (caught.value.rule, caught.value.member) == ("cut", "w1")
    before.closed("w1", 0, "")
    assert isinstance(inbox.take(0), Cut) and inbox.take(0) is None
    with pytest.raises(FrameError) as caught:
        inbox.receiver(Greeting("w1", 0, 0, 7))
    assert (caught.value.rule, caught.value.member, caught.value.given) == ("unknown-generation", "w1", 7)
    inbox.turn(GraphCommitted(7, None, {"w1": ("127.0.0.1", 4000)}))
    inbox.receiver(Greeting("w1", 0, 0, 7)).take(token)


@pytest.mark.local
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
    nodes["w0"].inbox.put(GraphPrepared(3))
    for node in nodes.values():
        node.join()
    error = nodes["w0"].error
    assert isinstance(error, SyncError) and (error.rule, error.member) == ("participant", "w0")


@pytest.mark.local
def test_waits_are_counted_for_whom_they_ended_with() -> None:
    graph = ring(MEMBERS[:4])
    members = hop_members(graph, HopRules(), 20)
    problem = Quadratics(graph.members, Random(1))
    for name, member in members.items():
        member.parameters = problem.start[name]
    came = Gate(0)  # which iteration w1 has w2's update of
    receive = members["w1"].receive

    def noted(sender: str, message: Message) -> Iterable[Send]:
        answers = receive(sender, message)
        if sender == "w2" and isinstance(message, HopUpdate):
            came.open(message.iteration)
        return answers

    def seconds(name: str, k: int) -> float:
        """w0 sends its next update after w1 has had the one of w2 that follows it: w1 finds that one there."""
        if name == "w0":
            came.enter(min(k + 2, 19))
        return 0.03 if name == "w0" else 0.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(members["w1"], "receive", noted)
        nodes = start(members, around(graph), 3, of(problem, seconds))
        run(nodes)
    waits = nodes["w1"].follow.waits
    assert sum(waited for waited, by in waits if by == "w0") > 0.2
    # Those of the first two iterations, since all send their first update at once, and for all to end.
    assert sum(by == "w2" for _, by in waits) <= 3


@pytest.mark.physics
def test_an_update_that_waits_for_a_slow_path_is_left_out_when_a_newer_one_makes_it_useless() -> None:
    member: HopMember = hop_members(ring(MEMBERS), HopRules(max_ig=5, staleness=2), 10)["w0"]
    update = HopUpdate(3, torch.zeros(1))
    assert member.stale("w1", update, [HopUpdate(4, torch.zeros(1))])
    assert not member.stale("w1", update, [])


@pytest.mark.physics
def test_an_update_that_waits_for_a_slow_path_is_left_out_when_its_receiver_has_gone_on() -> None:
    member: HopMember = hop_members(ring(MEMBERS), HopRules(max_ig=5, backup=1), 10)["w0"]
    member.iteration = 4
    assert member.credits
    member.credits.put("w1", 2)  # 6 of 5 are w1's: it is one ahead, in iteration 5
    assert member.stale("w1", HopUpdate(4, torch.zeros(1)), [])
    assert not member.stale("w5", HopUpdate(4, torch.zeros(1)), [])
