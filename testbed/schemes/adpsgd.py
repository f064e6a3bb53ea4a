"""AD-PSGD: each member takes a local step while its model is averaged with one random neighbour.

The graph is bipartite. An active member asks a passive one, which averages at once and answers. Passive members ask
nobody, so no cycle of members can wait for each other. The answer is half of the models' difference [ours]: the passive
member adds it and the active one subtracts it, which is an atomic average even if a step ended meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import TYPE_CHECKING

from testbed.schemes.assignment import GossipAssignment, Setting, graph_of
from testbed.schemes.options import InGraph
from testbed.schemes.scheme import Scheme
from testbed.schemes.training import GossipTraining
from testbed.sync.gossip.effects import Advance, Participant, Send, Steps, TrainingMember, Until
from testbed.sync.gossip.message import Message, message

if TYPE_CHECKING:
    from torch import Tensor

SCHEME = Scheme(
    name="adpsgd",
    options=InGraph,
    exchange="gossip",
    planned=False,
    synchronous=False,
    alike=False,
    source="Lian et al. 2018, arXiv 1710.06952",
)


def assign(options: InGraph, setting: Setting) -> GossipAssignment:
    """Give members their neighbours and their side, active or passive.

    Raises:
        GraphError: The workers make no such graph, or the graph is not bipartite.
    """
    graph = graph_of(options, setting)
    active, _ = graph.sides()
    own = {member: {"active": member in active} for member in graph.members}
    return GossipAssignment(protocol="adpsgd", graph=graph, own=own)


@message(6)
class AverageRequest(Message):
    """The active member's parameters, to be averaged with the receiver's."""

    parameters: Tensor


@message(7)
class HalfDifference(Message):
    """Half of the difference, which the passive member has added and the active one subtracts."""

    half: Tensor


class PassiveMember(TrainingMember):
    """A member that trains, and averages with any member that asks, also after its own training has ended."""

    def __init__(self, name: str, parameters: Tensor, iterations: int) -> None:
        super().__init__(name, parameters)
        self._iterations = iterations

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        """Answer a request for an average: move to the mean, and send half of the difference."""
        if not isinstance(message, AverageRequest):
            raise self.unexpected(sender, message)
        half = (message.parameters - self.parameters) / 2
        self.parameters = self.parameters + half
        return (Send(sender, HalfDifference(half)),)

    def program(self) -> Steps[None]:
        """Yield local steps one after the other. Averages happen meanwhile, as active members ask."""
        for iteration in range(self._iterations):
            change = yield from self.local_step(iteration)
            self.parameters = self.parameters + change
        yield Advance(self._iterations)


class ActiveMember(TrainingMember):
    """A member that averages with one random member of `targets`, all passive, during each of its steps."""

    def __init__(
        self, name: str, targets: tuple[str, ...], parameters: Tensor, iterations: int, random: Random
    ) -> None:
        super().__init__(name, parameters)
        self._targets = targets
        self._iterations = iterations
        self._random = random
        self._asked = ""

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        """Move by half of the difference that the asked neighbour sent."""
        if not isinstance(message, HalfDifference) or sender != self._asked:
            raise self.unexpected(sender, message)
        self.parameters = self.parameters - message.half
        self._asked = ""
        return ()

    def program(self) -> Steps[None]:
        """Yield the steps, each beside an average with a random passive neighbour."""
        for iteration in range(self._iterations):
            step = yield from self.begin(iteration)
            self._asked = self._random.choice(self._targets)
            yield Send(self._asked, AverageRequest(self.parameters))
            yield Until(lambda: not self._asked, "the answer of its passive neighbour")
            change = yield from self.finished(step, iteration)
            self.parameters = self.parameters + change
        yield Advance(self._iterations)


def build(options: InGraph, training: GossipTraining) -> Participant:
    """Return the AD-PSGD participant of one member: active or passive, by its side of the graph."""
    name, parameters, iterations = training.name, training.parameters, training.iterations
    if training.node.rules["active"]:
        return ActiveMember(name, training.node.targets, parameters, iterations, training.random)
    return PassiveMember(name, parameters, iterations)
