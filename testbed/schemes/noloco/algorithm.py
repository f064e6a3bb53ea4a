"""NoLoCo's members (arXiv 2506.10911): an outer step with momentum, over a random pair.

    Δ = θ - (θ after H local steps)
    m ← μ·m - α·mean(Δ) + α·(mean(θ) - θ)     means over the two of a pair, which send each other Δ and θ [γ = α: ours]
    θ ← θ + m

Pairs follow from the seed and the outer step's number, so that nobody has to be asked. Where members are an odd number
one is alone in each step. A member waits for its pair alone, which may wait for the pair that it had before, and so on:
where one of 16 is eight times slower than the others, one of these waits for up to 7.9 of its outer steps at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from torch import Tensor

from testbed.schemes.noloco import NoLoCoOptions
from testbed.schemes.training import GossipTraining
from testbed.sync.gossip.effects import Advance, LocalCompute, Participant, Send, Step, Steps, TrainingMember, Until
from testbed.sync.gossip.message import Message, message


@message(24)
class PairChange(Message):
    """What the sender's local steps of `iteration` changed, as θ - θ after them."""

    iteration: int
    change: Tensor


@message(25)
class PairAnchor(Message):
    """Where the sender began `iteration`."""

    iteration: int
    anchor: Tensor


#: A chain of pairs is waited for at a time, of hardly more outer steps than this.
PATIENCE = 10


class NoLoCoMember(TrainingMember):
    """Takes `iterations` outer steps by `options` among `members`."""

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
        return PATIENCE

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        match message:
            case PairChange(iteration, change):
                self._changes[iteration] = change
            case PairAnchor(iteration, anchor):
                self._anchors[iteration] = anchor
            case _:
                raise self.unexpected(sender, message)
        return ()

    def program(self) -> Steps[None]:
        for iteration in range(self._iterations):
            yield Advance(iteration)
            local = self.parameters
            for number in range(iteration * self._options.every, (iteration + 1) * self._options.every):
                step: Step = yield LocalCompute(local, number)
                yield from self.finished(step, number)
                local = local + step.change
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
    """Each member's other in this outer step; itself, for the one that is left over."""
    drawn = list(members)
    Random(f"{seed} pairs {iteration}").shuffle(drawn)
    found = {name: name for name in drawn}
    for one, other in zip(drawn[::2], drawn[1::2], strict=False):
        found[one], found[other] = other, one
    return found


def build(options: NoLoCoOptions, training: GossipTraining) -> Participant:
    """The participant among all members."""
    parameters, iterations = training.parameters, training.iterations
    return NoLoCoMember(training.name, training.members, options, parameters, iterations, training.seed)
