"""NetMax: each member pulls the model of one peer at a time, more often from peers that are fast to reach.

    x ← x + step − c·(x − x_m) / p_m

A peer's model counts more the more seldom it is pulled (with probability p_m), so that no peer's share of the model
depends on the speed of its edge. `c` is the paper's rate × ρ; it includes the doubling of γ for edges both ways. Here
`c` is 1 / (2 · the most peers of a member), and also the least probability of a pull. It is the same at all members:
else the data of those with few peers would count more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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

#: The weight of the newest pull from a peer in the estimate of the seconds that its pulls take [ours].
NEWEST = 0.25

SCHEME = Scheme(
    name="netmax",
    options=InGraph,
    exchange="gossip",
    planned=False,
    synchronous=False,
    alike=False,
    source="Zhou et al. 2021, ICDE",
)


def assign(options: InGraph, setting: Setting) -> GossipAssignment:
    """Give members their neighbours. Raises GraphError where the workers make no such graph."""
    graph = graph_of(options, setting)
    most = max(len(graph.targets(member)) for member in graph.members)
    return GossipAssignment(protocol="netmax", graph=graph, rules={"most": most})


@message(8)
class Pull(Message):
    """The sender asks for the receiver's parameters."""


@message(9)
class Model(Message):
    """The sender's parameters."""

    parameters: Tensor


def pull_probabilities(seconds: Mapping[str, float], floor: float) -> dict[str, float]:
    """Return the probability of a pull from each peer: proportional to its speed above the `floor` [ours].

    The floor keeps the graph of pulls connected. It stands for the paper's linear program for the spectral gap.

    Args:
        seconds: The seconds that a pull from each peer takes.
        floor: The probability that each peer gets at any speed, above 0 and at most 1 / peers.
    """
    speeds = {peer: 1 / time for peer, time in seconds.items()}
    rest = (1 - floor * len(seconds)) / sum(speeds.values())
    return {peer: floor + rest * speed for peer, speed in speeds.items()}


class NetMaxMember(TrainingMember):
    """A member that pulls from one of `peers` during each step.

    Args:
        most: The largest number of peers that a member has.
        clock: The clock (seconds) that shows which peers are fast.
    """

    def __init__(
        self,
        name: str,
        peers: Sequence[str],
        most: int,
        parameters: Tensor,
        iterations: int,
        random: Random,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(name, parameters)
        self._iterations = iterations
        self._random = random
        self._clock = clock
        # c, and the least probability of a pull. With equal probabilities a pull of a member with the most peers moves
        # the model half of the way to the peer's; a slow peer keeps half of that probability.
        self._floor = 1 / (2 * most)
        self._probabilities = dict.fromkeys(peers, 1 / len(peers))
        self._seconds: dict[str, float] = {}
        self._asked_s = 0.0
        self._pulled: Tensor | None = None

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        """Send the parameters to a neighbour that pulls, or take a pulled model and learn from its time."""
        match message:
            case Pull():
                return (Send(sender, Model(self.parameters)),)
            case Model(parameters):
                self._update_probabilities(sender, self._clock() - self._asked_s)
                self._pulled = parameters
                return ()
        raise self.unexpected(sender, message)

    def program(self) -> Steps[None]:
        """Yield the steps, each beside a pull from a neighbour drawn by the probabilities."""
        for iteration in range(self._iterations):
            step = yield from self.begin(iteration)
            peers, odds = zip(*self._probabilities.items(), strict=True)
            (peer,) = self._random.choices(peers, odds)
            share = self._floor / self._probabilities[peer]
            self._asked_s = self._clock()
            yield Send(peer, Pull())
            yield Until(lambda: self._pulled is not None, f"the model of {peer}")
            change = yield from self.finished(step, iteration)
            pulled, self._pulled = self._pulled, None
            assert pulled is not None
            self.parameters = self.parameters + change - share * (self.parameters - pulled)
        yield Advance(self._iterations)

    def _update_probabilities(self, peer: str, took_s: float) -> None:
        """Update the probabilities. A peer without a pull counts as fast as the fastest, so that it gets one."""
        before = self._seconds.get(peer, took_s)
        self._seconds[peer] = (1 - NEWEST) * before + NEWEST * took_s
        best = min(self._seconds.values())
        seconds = {other: self._seconds.get(other, best) for other in self._probabilities}
        self._probabilities = pull_probabilities(seconds, self._floor)


def build(options: InGraph, training: GossipTraining) -> Participant:
    """Return the NetMax participant of one member, which pulls from its neighbours."""
    node, own = training.node, (training.parameters, training.iterations, training.random, training.clock)
    return NetMaxMember(training.name, node.targets, node.rules["most"], *own)
