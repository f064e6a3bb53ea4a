"""Stochastic gradient push (arXiv 1811.10792): averaging over any directed graph, by sending shares that carry mass.

A member splits what it has, numerator and mass alike, among its out-neighbours and itself; the quotient of what it
then gathers is its model. Sums over all members stay what they were, so that the members agree on the plain mean
although no member knows how many send to which.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from torch import Tensor

from testbed.schemes.options import InGraph
from testbed.schemes.training import GossipTraining
from testbed.sync.gossip.effects import Advance, Participant, Send, Steps, TrainingMember, Until
from testbed.sync.gossip.message import Message, message
from testbed.sync.gossip.neighbours import Neighbours


@message(5)
class MassShare(Message):
    """A part of the sender's numerator and of its mass, in `iteration`."""

    iteration: int
    numerator: Tensor
    mass: float


class PushSumMember(TrainingMember):
    """Synchronous: an iteration ends when all in-neighbours' shares of it have come. Weights are not used."""

    def __init__(self, neighbours: Neighbours, parameters: Tensor, iterations: int) -> None:
        super().__init__(neighbours.member, parameters)
        self._neighbours = neighbours
        self._iterations = iterations
        self._numerator = parameters
        self._mass = 1.0
        self._shares: dict[int, list[MassShare]] = defaultdict(list)

    @property
    def held(self) -> tuple[Tensor, float]:
        """Numerator and mass that are with this member: its own and what came early."""
        waiting = [share for shares in self._shares.values() for share in shares]
        numerator = sum((share.numerator for share in waiting), self._numerator)
        return numerator, self._mass + sum(share.mass for share in waiting)

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        if not isinstance(message, MassShare):
            raise self.unexpected(sender, message)
        self._shares[message.iteration].append(message)
        return ()

    def program(self) -> Steps[None]:
        for iteration in range(self._iterations):
            change = yield from self.local_step(iteration)
            self._numerator = self._numerator + change
            yield from self._push(iteration)
            yield from self._gather(iteration)
        yield Advance(self._iterations)

    def _push(self, iteration: int) -> Steps[None]:
        parts = len(self._neighbours.targets) + 1
        self._numerator = self._numerator / parts
        self._mass /= parts
        for target in self._neighbours.targets:
            yield Send(target, MassShare(iteration, self._numerator, self._mass))

    def _gather(self, iteration: int) -> Steps[None]:
        sources = len(self._neighbours.sources)
        yield Until(lambda: len(self._shares[iteration]) == sources, f"{sources} shares of iteration {iteration}")
        for share in self._shares.pop(iteration):
            self._numerator = self._numerator + share.numerator
            self._mass += share.mass
        self.parameters = self._numerator / self._mass


def build(options: InGraph, training: GossipTraining) -> Participant:
    """The participant of an assignment; ValueError when it is none."""
    return PushSumMember(training.neighbours, training.parameters, training.iterations)
