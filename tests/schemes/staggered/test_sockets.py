"""The hybrid scheme over drivers: groups with periods of their own end with equal models near the optimum."""

from __future__ import annotations

from dataclasses import asdict
from random import Random

import pytest
import torch

from testbed.schemes.staggered import graph_of_teams
from testbed.schemes.staggered.member import StaggeredMember
from testbed.schemes.staggered.rules import StaggeredRules, Team
from testbed.schemes.staggered.shards import Agreed, GroupMove, Local, Merged
from testbed.sync.codecs import by_name
from testbed.sync.errors import FrameError, SyncError
from testbed.sync.gossip.driver import LocalStep
from testbed.sync.gossip.message_codec import MessageCodec
from tests.sync.gossip.driven import World, rough
from tests.sync.gossip.loopback import no_change, start
from tests.sync.gossip.quadratic import Quadratics
from tests.waiting import until

MEMBERS = tuple(f"w{index}" for index in range(6))
LEADERS = (Team(MEMBERS[:3], MEMBERS[:1]), Team(MEMBERS[3:5], MEMBERS[4:5], 4, 1), Team(MEMBERS[5:], MEMBERS[5:], 2, 1))
SHARDED = tuple(Team(team.members, team.members, team.period, team.phase) for team in LEADERS)


def partners_of(rules: StaggeredRules) -> dict[str, tuple[str, ...]]:
    """Return all members from which each member may get a message."""
    graph = graph_of_teams({"teams": [asdict(team) for team in rules.teams], "steps": rules.steps})
    return {name: graph.sources(name) for name in MEMBERS}


def check_alike(members: dict[str, StaggeredMember], problem: Quadratics) -> None:
    first, *others = members.values()
    assert all(torch.equal(first.parameters, other.parameters) for other in others)
    apart = max(problem.distance(one) for one in problem.start.values())
    assert problem.distance(first.parameters) < 0.3 * apart


def rules_of(teams: tuple[Team, ...], codec: str, staleness: int | None) -> StaggeredRules:
    steps = {name: 1 + index % 3 for index, name in enumerate(MEMBERS)}
    samples = dict.fromkeys(MEMBERS, 1.0)
    return StaggeredRules(teams, 60, steps, samples, staleness=staleness, codec=by_name(codec))


@pytest.mark.pure
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("teams", [LEADERS, SHARDED], ids=["leaders", "shards"])
@pytest.mark.parametrize(("codec", "staleness"), [("fp32", None), ("fp32", 2), ("fp16", 2), ("bf16", None)])
def test_all_end_alike_near_the_common_optimum(
    teams: tuple[Team, ...], codec: str, staleness: int | None, seed: int
) -> None:
    """A step takes from 1 ms to 6 ms, by the member."""
    problem, network = Quadratics(MEMBERS, Random(1)), rough(seed)
    network.step_s = lambda name, iteration: 0.001 * (1 + MEMBERS.index(name)) * network.draw.uniform(0.8, 1.2)
    rules, world = rules_of(teams, codec, staleness), World(network, problem.change)
    members = {name: StaggeredMember(name, rules, problem.start[MEMBERS[0]]) for name in MEMBERS}
    world.start(members, partners_of(rules), 3, rules.codec)
    world.run()
    assert world.errors() == {}
    check_alike(members, problem)


@pytest.mark.local
def test_all_end_alike_over_sockets() -> None:
    problem, rules = Quadratics(MEMBERS, Random(1)), rules_of(SHARDED, "fp16", 2)
    members = {name: StaggeredMember(name, rules, problem.start[MEMBERS[0]]) for name in MEMBERS}

    def step_of(name: str) -> LocalStep:
        return lambda parameters, iteration: problem.change(name, iteration, parameters)

    nodes = start(members, partners_of(rules), 3, step_of, codec=rules.codec)
    for node in nodes.values():
        node.join()
    assert not {name: node.error for name, node in nodes.items() if node.error}
    first, *others = members.values()
    assert all(torch.equal(first.parameters, other.parameters) for other in others)


@pytest.mark.local
def test_a_death_ends_all_and_names_the_lost_member() -> None:
    rules = StaggeredRules(LEADERS, 10_000, dict.fromkeys(MEMBERS, 1), dict.fromkeys(MEMBERS, 1.0), staleness=1)
    members = {name: StaggeredMember(name, rules, torch.zeros(3)) for name in MEMBERS}
    partners = partners_of(rules)
    nodes = start(members, partners, 3, no_change)
    until(lambda: all(len(node.follow.entered) >= 5 for node in nodes.values()))
    nodes["w3"].kill()
    for node in nodes.values():
        node.join()
    assert all(isinstance(node.error, SyncError) for node in nodes.values())
    assert nodes["w4"].error.member == "w3"


@pytest.mark.local
@pytest.mark.parametrize("codec", ["fp32", "fp16"])
def test_messages_travel(codec: str) -> None:
    messages = MessageCodec(MEMBERS, 10, by_name(codec))
    values = torch.tensor([0.5, -2.0, 1024.0])
    for message in (Local(3, values), Agreed(4, values), GroupMove(5, 7, values), Merged(6, 7, values)):
        packed = messages.pack(message)  # what is read is its memory
        read = messages.unpack(packed)
        assert type(read) is type(message)
        assert torch.equal(read.values, values)
        assert read.round == message.round and getattr(read, "start", 7) == 7


@pytest.mark.local
def test_no_part_of_the_model_is_refused() -> None:
    messages = MessageCodec(MEMBERS, 10)
    with pytest.raises(FrameError) as caught:
        messages.unpack(messages.pack(GroupMove(1, 0, torch.zeros(11))))
    assert caught.value.rule == "size"
    one = StaggeredMember(
        "w0", StaggeredRules(LEADERS, 1, dict.fromkeys(MEMBERS, 1), dict.fromkeys(MEMBERS, 1.0)), torch.zeros(9)
    )
    for message in (Local(1, torch.zeros(4)), Merged(1, 0, torch.zeros(3)), Agreed(1, torch.zeros(4))):
        with pytest.raises(TypeError):
            one.receive("w1", message)
    with pytest.raises(ValueError):
        one.receive("w4", GroupMove(1, 2, torch.zeros(4)))
