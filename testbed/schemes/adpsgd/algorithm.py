"""AD-PSGD (arXiv 1710.06952): a local step on the side, while the model is averaged with one random neighbour.

The graph has two sides. An active member asks a passive one, which averages at once and answers; passive members ask
nobody, so there is no cycle of members that wait for each other. What is exchanged is the difference [ours]: one adds
half of it and the other takes half away, which is an atomic average even where one's step ended meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from torch import Tensor

from testbed.schemes.options import InGraph
from testbed.schemes.training import GossipTraining
from testbed.sync.gossip.effects import Advance, Participant, Send, Steps, TrainingMember, Until
from testbed.sync.gossip.message import Message, message


@message(6)
class AverageRequest(Message):
    """The active member's parameters, to be averaged with the receiver's."""

    parameters: Tensor


@message(7)
class HalfDifference(Message):
    """Half the difference: the passive member has added it, the active one takes it away."""

    half: Tensor


class PassiveMember(TrainingMember):
    """Trains, and averages with any member that asks, also after its own training has ended."""

    def __init__(self, name: str, parameters: Tensor, iterations: int) -> None:
        super().__init__(name, parameters)
        self._iterations = iterations

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        if not isinstance(message, AverageRequest):
            raise self.unexpected(sender, message)
        half = (message.parameters - self.parameters) / 2
        self.parameters = self.parameters + half
        return (Send(sender, HalfDifference(half)),)

    def program(self) -> Steps[None]:
        for iteration in range(self._iterations):
            change = yield from self.local_step(iteration)
            self.parameters = self.parameters + change
        yield Advance(self._iterations)


class ActiveMember(TrainingMember):
    """Averages with one random member of `targets`, all passive, during each of its steps."""

    def __init__(
        self, name: str, targets: tuple[str, ...], parameters: Tensor, iterations: int, random: Random
    ) -> None:
        super().__init__(name, parameters)
        self._targets = targets
        self._iterations = iterations
        self._random = random
        self._asked = ""

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        if not isinstance(message, HalfDifference) or sender != self._asked:
            raise self.unexpected(sender, message)
        self.parameters = self.parameters - message.half
        self._asked = ""
        return ()

    def program(self) -> Steps[None]:
        for iteration in range(self._iterations):
            step = yield from self.begin(iteration)
            self._asked = self._random.choice(self._targets)
            yield Send(self._asked, AverageRequest(self.parameters))
            yield Until(lambda: not self._asked, "the answer of its passive neighbour")
            change = yield from self.finished(step, iteration)
            self.parameters = self.parameters + change
        yield Advance(self._iterations)


def build(options: InGraph, training: GossipTraining) -> Participant:
    """The participant on its side of the graph."""
    name, parameters, iterations = training.name, training.parameters, training.iterations
    if training.node.rules["active"]:
        return ActiveMember(name, training.node.targets, parameters, iterations, training.random)
    return PassiveMember(name, parameters, iterations)
