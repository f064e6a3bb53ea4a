"""Decoupled DiLoCo (Douillard et al. 2026, arXiv 2604.21428): members take steps and wait for nobody.

    member m, all the time      θ_m ← θ_m + step
    asked for a fragment p      Δ_m = Θ_p - θ_m,p,  w_m = tokens² / steps, both since p's last merge
    syncer, of K members        Θ_p ← Nesterov(Θ_p, merge of Δ_m by w_m)        (merge.py)
    told the result             θ_m,p ← Θ_p

Members take equal batches here, so that w_m is how many steps a member took. What it does between its answer and the
result is overwritten, as the paper has it: `overlap` of `every` steps at most, where the network is as fast as that
says. One whose answer comes too late for a merge loses its steps since the last one of that fragment.

A member answers with its change since the last merge, and once only: where that merge's result is still on its way to
it, it answers when it has come and a step is taken. So nothing counts twice, and slow links slow merges down, and no
steps. The syncer lives with one member, and is lost with it.

Under a codec for changes a member keeps what the codec left out of its answers, and adds it to the next ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from testbed.schemes.decoupled_diloco import DecoupledOptions
from testbed.schemes.decoupled_diloco.messages import (
    FragmentChange,
    FragmentDue,
    FragmentWanted,
    GraceOver,
    LearnerCame,
    MergedFragment,
    MergedStep,
    MergedWhole,
)
from testbed.schemes.decoupled_diloco.syncer import Syncer, rounded
from testbed.schemes.staggered.rules import cut
from testbed.schemes.training import GossipTraining
from testbed.sync.codecs import by_name
from testbed.sync.gossip.effects import Advance, LocalCompute, Participant, Send, Step, Steps, Until
from testbed.sync.gossip.message import Message
from testbed.sync.gossip.served import ServedMember

#: What a member that has just come holds of each fragment.
NOTHING = -1


@dataclass(slots=True)
class _Held:
    """A fragment at a member: the elements [start, stop), of the merge `round`, `steps` ago; `wanted` for a merge."""

    start: int
    stop: int
    round: int
    steps: int = 0
    wanted: int = 0

    @property
    def here(self) -> slice:
        return slice(self.start, self.stop)


class DecoupledLearner(ServedMember):
    """Trains until each fragment was merged `rounds` times; in the iteration that all fragments have come to.

    One that comes while others train, in the iteration `first`, begins with the syncer's model.
    """

    def __init__(
        self, name: str, syncer: str, options: DecoupledOptions, parameters: Tensor, rounds: int, first: int = 0
    ) -> None:
        super().__init__(name, parameters, first)
        self._syncer = syncer
        self._options = options
        self._rounds = rounds
        self._agreed = parameters.clone()
        self._codec = by_name(options.codec)
        self._keeps = options.in_changes and name != syncer
        self._left_out = torch.zeros_like(parameters) if self._keeps else torch.empty(0)
        bounds = cut(len(parameters), options.fragments)
        self._fragments = [_Held(start, stop, NOTHING if first else 0) for start, stop in bounds]

    def program(self) -> Steps[None]:
        yield Advance(self._first)
        if self._first:
            yield Send(self._syncer, LearnerCame())
            yield Until(lambda: self._merges > NOTHING, "the syncer's model")
        number, a_fragment = self._first * self._options.every, self._options.every // self._options.fragments
        while self._merges < self._rounds:
            step: Step = yield LocalCompute(self.parameters, number)
            yield from self._done(step)
            if step.done:
                self._take(step.change)
                number += 1
                if number % a_fragment == 0:
                    yield Send(self._syncer, FragmentDue())
                yield from self._answers()
                yield from self._advance(self._merges)
        yield Until(lambda: self.may_enter(self._rounds), "word of who comes")
        yield from self._advance(self._rounds)
        self.parameters = self._agreed

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        match message:
            case FragmentWanted(number, merge) if number < len(self._fragments):
                self._fragments[number].wanted = merge
                return tuple(self._answer(number))
            case MergedFragment(number, merge, values) | MergedWhole(number, merge, values) if number < len(
                self._fragments
            ):
                self._hold(self._fragments[number], merge, values)
            case MergedStep(number, merge, step) if number < len(self._fragments):
                self._step(self._fragments[number], merge, step)
            case _:
                raise self.unexpected(sender, message)
        return ()

    def stale(self, to: str, message: Message, later: Sequence[Message]) -> bool:
        """A merge's result, where that of the next one waits behind it."""
        return isinstance(message, MergedFragment | MergedStep | MergedWhole) and any(
            isinstance(other, MergedFragment | MergedWhole) and other.fragment == message.fragment for other in later
        )

    @property
    def _merges(self) -> int:
        """How often each fragment, of which it holds the result, was merged at least."""
        return min(held.round for held in self._fragments)

    def _advance(self, iteration: int) -> Steps[None]:
        if iteration > self._entered and self.may_enter(iteration):
            yield from self.enter(iteration)

    def _done(self, step: Step) -> Steps[None]:
        """Waits for a step, or for the last merge, which makes it useless."""
        yield Until(lambda: step.done or self._merges == self._rounds, "its own step")

    def _take(self, change: Tensor) -> None:
        self.parameters = self.parameters + change
        for held in self._fragments:
            held.steps += 1

    def _answers(self) -> Iterator[Send]:
        for number in range(len(self._fragments)):
            yield from self._answer(number)

    def _answer(self, number: int) -> Iterator[Send]:
        """What it has changed of a fragment that is wanted, if it can say so yet."""
        held = self._fragments[number]
        if held.steps and held.wanted == held.round + 1:
            change = self._agreed[held.here] - self.parameters[held.here]
            if self._keeps:
                change += self._left_out[held.here]
                self._left_out[held.here] = change - rounded(self._codec, change)
            yield Send(self._syncer, FragmentChange(number, held.wanted, float(held.steps), change))
            held.wanted = 0

    def _step(self, held: _Held, merge: int, step: Tensor) -> None:
        if merge > held.round + 1 or len(step) != held.stop - held.start:
            raise ValueError(f"merge {merge} of a fragment, {len(step)} elements, where {held.round} is held")
        self._hold(held, merge, self._agreed[held.here] + step)

    def _hold(self, held: _Held, merge: int, values: Tensor) -> None:
        if len(values) != held.stop - held.start:
            raise ValueError(f"{len(values)} elements, where a fragment has {held.stop - held.start}")
        if merge <= held.round:
            return
        held.round, held.steps = merge, 0
        self._agreed = self._agreed.clone()
        self._agreed[held.here] = values
        self.parameters = self.parameters.clone()
        self.parameters[held.here] = values


class SyncingLearner(DecoupledLearner):
    """The member whose process runs the syncer of all `members` as well; `clock` says seconds."""

    def __init__(
        self,
        name: str,
        members: Sequence[str],
        options: DecoupledOptions,
        parameters: Tensor,
        rounds: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name, name, options, parameters, rounds)
        fragments = [parameters[slice(*its)] for its in cut(len(parameters), options.fragments)]
        self.syncer = Syncer(name, members, options, fragments, rounds, clock)

    @property
    def metrics(self) -> Mapping[str, float]:
        """How many members' changes a merge had, in the mean: few where `overlap` is short for the network."""
        return {"changes_per_merge": self.syncer.changes / self.syncer.merged} if self.syncer.merged else {}

    def forget(self, gone: str) -> Iterable[Send]:
        return tuple(self.syncer.forget(gone))

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        match message:
            case FragmentDue():
                return tuple(self.syncer.due(sender))
            case FragmentChange():
                return tuple(self.syncer.changed(sender, message))
            case GraceOver() if sender == self.name:
                return tuple(self.syncer.grace_over(message))
            case LearnerCame():
                return tuple(self.syncer.came(sender))
            case _:
                return super().receive(sender, message)


def build(options: DecoupledOptions, training: GossipTraining) -> Participant:
    """A member, or the one whose process runs the syncer as well."""
    name, syncer = training.name, training.node.rules["syncer"]
    parameters, rounds = training.parameters, training.iterations
    if name == syncer:
        return SyncingLearner(name, training.members, options, parameters, rounds, training.clock)
    return DecoupledLearner(name, syncer, options, parameters, rounds, training.node.first)
