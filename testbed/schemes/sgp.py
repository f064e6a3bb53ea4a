"""Stochastic gradient push: averaging over any directed graph, by sending shares that carry mass.

A member splits its numerator and its mass (the push-sum weight) among its out-neighbours and itself. Its model is the
sum of the numerators that it then gathers over the sum of their masses. The sums over all members stay constant, so the
members agree on the plain mean although no member knows how many others send to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from testbed.schemes.assignment import GossipAssignment, Setting, graph_of
from testbed.schemes.options import InGraph
from testbed.schemes.scheme import Scheme
from testbed.schemes.training import GossipTraining
from testbed.sync.gossip.effects import Advance, Participant, Send, Steps, TrainingMember, Until
from testbed.sync.gossip.message import Message, message
from testbed.sync.gossip.neighbours import Neighbours

if TYPE_CHECKING:
    from torch import Tensor

SCHEME = Scheme(
    name="sgp",
    options=InGraph,
    exchange="gossip",
    planned=False,
    alike=False,
    source="Assran et al. 2019, arXiv 1811.10792",
)


def assign(options: InGraph, setting: Setting) -> GossipAssignment:
    """Give members their neighbours. Raises GraphError where the workers make no such graph."""
    return GossipAssignment(protocol="sgp", graph=graph_of(options, setting))


@message(5)
class MassShare(Message):
    """A part of the sender's numerator and of its mass, in `iteration`."""

    iteration: int
    numerator: Tensor
    mass: float


class PushSumMember(TrainingMember):
    """A synchronous member: an iteration ends when the shares of all in-neighbours have come. Weights are not used."""

    def __init__(self, neighbours: Neighbours, parameters: Tensor, iterations: int) -> None:
        super().__init__(neighbours.member, parameters)
        self._neighbours = neighbours
        self._iterations = iterations
        self._numerator = parameters
        self._mass = 1.0
        self._shares: dict[int, list[MassShare]] = defaultdict(list)

    @property
    def held(self) -> tuple[Tensor, float]:
        """Numerator and mass at this member: its own, and the shares that came early."""
        waiting = [share for shares in self._shares.values() for share in shares]
        numerator = sum((share.numerator for share in waiting), self._numerator)
        return numerator, self._mass + sum(share.mass for share in waiting)

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        """Keep a neighbour's share of its mass for its iteration."""
        if not isinstance(message, MassShare):
            raise self.unexpected(sender, message)
        self._shares[message.iteration].append(message)
        return ()

    def program(self) -> Steps[None]:
        """Yield a local step, the shares that go out, and the wait for those that come in, in each iteration."""
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
    """Return the participant of a member. Raises ValueError where it has no neighbours."""
    return PushSumMember(training.neighbours, training.parameters, training.iterations)
