"""The party that a place asks for."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from random import Random

from torch import Tensor

from testbed.protocol import Place
from testbed.sync.decentralized.adpsgd import ActiveMember, PassiveMember
from testbed.sync.decentralized.bridge import SiteLeader, SiteWorker
from testbed.sync.decentralized.effects import Member, Message, Party, Send, Steps
from testbed.sync.decentralized.fedasync import AsyncMember, AsyncServer
from testbed.sync.decentralized.hop import HopMember, HopRules
from testbed.sync.decentralized.hybrid import HybridMember, HybridRules
from testbed.sync.decentralized.neighbours import Neighbours
from testbed.sync.decentralized.netmax import Model, NetMaxMember, Pull, pull_probabilities
from testbed.sync.decentralized.prague import GroupGenerator, Leaving, PragueMember, Ready
from testbed.sync.decentralized.pushsum import PushSumMember

#: What the newest pull from a peer counts in the estimate of how long pulls from it take [ours].
NEWEST = 0.25


class WithGenerator(Party):
    """A member of Prague, and the generator of everybody's groups, which lives with it."""

    def __init__(self, member: PragueMember, generator: GroupGenerator) -> None:
        self.name = member.name
        self.member = member
        self._generator = generator

    def program(self) -> Steps[None]:
        return self.member.program()

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        party = self._generator if isinstance(message, Ready | Leaving) else self.member
        return party.receive(sender, message)


class MeasuringNetMax(NetMaxMember):
    """Measures how long its pulls take, and pulls from fast peers more often from then on."""

    def __init__(self, name: str, peers: Sequence[str], parameters: Tensor, iterations: int, random: Random) -> None:
        # Under equal odds the model goes half of the way to the one that was pulled; slow peers keep half their odds.
        self._floor = 1 / (2 * len(peers))
        super().__init__(name, dict.fromkeys(peers, 1 / len(peers)), self._floor, parameters, iterations, random)
        self._seconds: dict[str, float] = {}
        self._asked_s = 0.0

    def program(self) -> Steps[None]:
        program, answer = super().program(), None
        while True:
            try:
                effect = program.send(answer)
            except StopIteration:
                return
            if isinstance(effect, Send) and isinstance(effect.message, Pull):
                self._asked_s = time.monotonic()
            answer = yield effect

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        if isinstance(message, Model):
            took = time.monotonic() - self._asked_s
            before = self._seconds.get(sender, took)
            self._seconds[sender] = (1 - NEWEST) * before + NEWEST * took
            self._learn()
        return super().receive(sender, message)

    def _learn(self) -> None:
        """Peers that were not pulled from yet count as fast as the fastest, so that they will be."""
        best = min(self._seconds.values())
        seconds: Mapping[str, float] = {peer: self._seconds.get(peer, best) for peer in self.probabilities}
        self.probabilities = pull_probabilities(seconds, self._floor)


def make_party(
    name: str,
    members: Sequence[str],
    place: Place,
    start: Tensor,
    iterations: int,
    seed: int,
    samples: Sequence[float] = (),
) -> Party:
    """The party `name` among `members`; ValueError when there is no such protocol, or it can't be had there.

    `samples` are how many each member learns from; as many at all of them, if none are given.
    """
    random = Random(f"{seed} {name}")
    neighbours = Neighbours(name, place.sources, place.targets, place.weights) if place.sources else None
    match place.protocol, neighbours:
        case "hop", Neighbours():
            return HopMember(neighbours, HopRules(**place.rules), start, iterations, place.first)
        case "leader", Neighbours():
            rules = {rule: value for rule, value in place.rules.items() if rule != "site"}
            member = HopMember(neighbours, HopRules(**rules), start, iterations)
            return SiteLeader(member, place.rules["site"], iterations)
        case "worker", _:
            return SiteWorker(name, place.rules["leader"], start, iterations)
        case "sgp", Neighbours():
            return PushSumMember(neighbours, start, iterations)
        case "adpsgd", _:
            if place.rules["active"]:
                return ActiveMember(name, place.targets, start, iterations, random)
            return PassiveMember(name, start, iterations)
        case "prague", _:
            return _prague(name, members, place, start, iterations, random)
        case "netmax", _:
            return MeasuringNetMax(name, place.targets, start, iterations, random)
        case "fedasync", _:
            server: str = place.rules["server"]
            if name == server:
                return AsyncServer(name, start, iterations, place.steps)
            return AsyncMember(name, server, start, iterations, place.steps)
        case "staggered", _:
            counted = dict(zip(members, samples or [1.0] * len(members), strict=True))
            return HybridMember(name, HybridRules.from_json(place.rules, iterations, counted), start)
    raise ValueError(
        f"no protocol {place.protocol!r} for {name}; there are hop, leader, worker, sgp, adpsgd, prague, netmax, "
        "fedasync and staggered"
    )


def _prague(name: str, members: Sequence[str], place: Place, start: Tensor, iterations: int, random: Random) -> Party:
    generator: str = place.rules["generator"]
    member = PragueMember(name, generator, start, iterations)
    if name != generator:
        return member
    return WithGenerator(member, GroupGenerator(generator, members, place.rules["group"], random))


def final_parameters(party: Party) -> Tensor:
    """What the party's model ended at."""
    member = party.member if isinstance(party, WithGenerator | SiteLeader) else party
    assert isinstance(member, Member)
    return member.parameters
