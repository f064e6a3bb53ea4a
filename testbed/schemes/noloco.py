"""NoLoCo: local steps, and then an outer step with momentum over a random pair of members, drawn again each time.

    Δ = θ - (θ after H local steps)
    m ← μ·m - α·mean(Δ) + α·(mean(θ) - θ)     means over the two members of a pair, which send each other Δ and θ
    θ ← θ + m

Source: Kolehmainen et al. 2025, arXiv 2506.10911; γ = α is ours.

Pairs follow from the seed and the number of the outer step, so no member has to ask. If the number of members is odd,
one has no partner in each step. A member waits for its partner alone, which may still wait for its previous partner,
and so on: if one of 16 members is eight times slower than the others, one of these waits for up to 7.9 of its outer
steps at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from testbed.schemes.assignment import GossipAssignment, Setting, graph_of
from testbed.schemes.options import InGraph, LocalSteps, Misfit, limited
from testbed.schemes.scheme import Scheme
from testbed.schemes.training import GossipTraining
from testbed.sync.gossip.effects import Advance, Participant, Send, Steps, TrainingMember, Until
from testbed.sync.gossip.message import Message, message

if TYPE_CHECKING:
    from torch import Tensor

#: The outer steps that a wait may last: hardly more than a chain of pairs takes (7.9 of 16 members, see above).
PATIENCE = 10


@dataclass(frozen=True)
class NoLoCoOptions(LocalSteps):
    """Options of NoLoCo."""

    #: Local steps in an outer step (H).
    every: int = limited(50, ge=1)
    #: The outer learning rate (α).
    learning_rate: float = limited(0.7, gt=0)
    #: The outer momentum (μ).
    momentum: float = limited(0.5, ge=0, lt=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        # The learning rate also draws members together. At 0.7 with a momentum of 0.9 eight members went from 1 to
        # 9,437 apart in 400 outer steps, without any gradient.
        most = 2 * (1 - self.momentum**2)
        if self.learning_rate >= most:
            raise Misfit("learning_rate", f"members drift apart at a momentum of {self.momentum}", f"below {most:.2g}")


SCHEME = Scheme(
    name="noloco",
    options=NoLoCoOptions,
    exchange="gossip",
    planned=False,
    synchronous=False,
    alike=False,
    source="Kolehmainen et al. 2025, arXiv 2506.10911",
)


def assign(options: NoLoCoOptions, setting: Setting) -> GossipAssignment:
    """Make every member every other's neighbour: any two may be a pair."""
    names = setting.view.names
    steps = dict.fromkeys(names, options.every)
    return GossipAssignment(protocol="noloco", graph=graph_of(InGraph(graph="complete"), setting), steps=steps)


@message(24)
class PairChange(Message):
    """The change by the sender's local steps of `iteration`: θ minus θ after them."""

    iteration: int
    change: Tensor


@message(25)
class PairAnchor(Message):
    """The sender's parameters at the start of `iteration`."""

    iteration: int
    anchor: Tensor


class NoLoCoMember(TrainingMember):
    """A member that takes `iterations` outer steps, each with one random partner of `members`."""

    def __init__(
        self,
        name: str,
        members: Sequence[str],
        options: NoLoCoOptions,
        parameters: Tensor,
        iterations: int,
        seed: int,
    ) -> None:
        super().__init__(name, parameters)
        self._members = members
        self._options = options
        self._iterations = iterations
        self._seed = seed
        self._momentum = parameters * 0
        self._changes: dict[int, Tensor] = {}
        self._anchors: dict[int, Tensor] = {}

    @property
    def patience(self) -> int:
        """The outer steps that one wait may last, PATIENCE."""
        return PATIENCE

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        """Keep the change, or the anchor, of the pair's other member for its iteration."""
        match message:
            case PairChange(iteration, change):
                self._changes[iteration] = change
            case PairAnchor(iteration, anchor):
                self._anchors[iteration] = anchor
            case _:
                raise self.unexpected(sender, message)
        return ()

    def program(self) -> Steps[None]:
        """Yield local steps, and an outer step with a random partner, in each iteration."""
        for iteration in range(self._iterations):
            yield Advance(iteration)
            local = yield from self.local_steps(iteration, self._options.every)
            yield from self._step_out(iteration, self.parameters - local)
        yield Advance(self._iterations)

    def _step_out(self, iteration: int, change: Tensor) -> Steps[None]:
        anchor, rate = self.parameters, self._options.learning_rate
        other = pairs(self._members, self._seed, iteration)[self.name]
        if other != self.name:
            yield Send(other, PairChange(iteration, change))
            yield Send(other, PairAnchor(iteration, anchor))
            yield Until(lambda: iteration in self._changes and iteration in self._anchors, f"{other}'s outer step")
            change = (change + self._changes.pop(iteration)) / 2
            anchor = (anchor + self._anchors.pop(iteration)) / 2
        self._momentum = self._options.momentum * self._momentum - rate * change + rate * (anchor - self.parameters)
        self.parameters = self.parameters + self._momentum


def pairs(members: Sequence[str], seed: int, iteration: int) -> dict[str, str]:
    """Return the partner of each member in this outer step. A member that is left over is its own partner."""
    drawn = list(members)
    Random(f"{seed} pairs {iteration}").shuffle(drawn)
    found = {name: name for name in drawn}
    for one, other in zip(drawn[::2], drawn[1::2], strict=False):
        found[one], found[other] = other, one
    return found


def build(options: NoLoCoOptions, training: GossipTraining) -> Participant:
    """Return the NoLoCo participant of one member, which may be paired with any other member."""
    parameters, iterations = training.parameters, training.iterations
    return NoLoCoMember(training.name, training.members, options, parameters, iterations, training.seed)
