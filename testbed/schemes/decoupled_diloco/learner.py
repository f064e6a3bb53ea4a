"""A member of Decoupled DiLoCo, and the member whose process runs the syncer as well."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from testbed.schemes.decoupled_diloco.syncer import (
    FragmentChange,
    FragmentDue,
    FragmentWanted,
    GraceOver,
    LearnerCame,
    MergedFragment,
    MergedStep,
    MergedWhole,
    Syncer,
)
from testbed.schemes.staggered.rules import cut
from testbed.sync.codecs import by_name, rounded
from testbed.sync.gossip.effects import Advance, LocalCompute, Send, ServedMember, Step, Steps, Until
from testbed.sync.gossip.message import Message

if TYPE_CHECKING:
    from torch import Tensor

    from testbed.schemes.decoupled_diloco import DecoupledOptions

#: The last merge of each fragment that a member holds when it has just joined: none.
NOTHING = -1


@dataclass(slots=True)
class _HeldFragment:
    """The elements [start, stop) of the model, one fragment, with this member's progress on them."""

    start: int
    stop: int
    #: The last merge whose result the member holds.
    round: int
    #: The member's steps since that result.
    steps: int = 0
    #: The merge for which the syncer wants the member's change; 0: none.
    wanted: int = 0

    @property
    def here(self) -> slice:
        return slice(self.start, self.stop)


class DecoupledLearner(ServedMember):
    """Trains until each fragment was merged `rounds` times. Its iteration is the fewest merges of any fragment.

    A member that joins while others train, in the iteration `first`, begins with the syncer's model.
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
        self._left_out = parameters.new_zeros(len(parameters) if self._keeps else 0)
        bounds = cut(len(parameters), options.fragments)
        self._fragments = [_HeldFragment(start, stop, NOTHING if first else 0) for start, stop in bounds]

    def program(self) -> Steps[None]:
        """Yield steps until the run's merges are taken. A member that joins late begins with the syncer's model."""
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
        yield Until(lambda: self.may_enter(self._rounds), "the end of a membership change")
        yield from self._advance(self._rounds)
        self.parameters = self._agreed

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        """Answer the syncer's request for a fragment, or take a merged fragment."""
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
        """Return True for a fragment's change or merge result if one of a later merge waits behind it.

        A later result replaces an earlier one only if it has the whole fragment. A later change was requested because
        the earlier merge is over.
        """
        if isinstance(message, FragmentChange):
            return any(isinstance(its, FragmentChange) and its.fragment == message.fragment for its in later)
        return isinstance(message, MergedFragment | MergedStep | MergedWhole) and any(
            isinstance(other, MergedFragment | MergedWhole) and other.fragment == message.fragment for other in later
        )

    @property
    def _merges(self) -> int:
        """The fewest merges of any fragment whose results the member holds."""
        return min(held.round for held in self._fragments)

    def _advance(self, iteration: int) -> Steps[None]:
        if iteration > self._entered and self.may_enter(iteration):
            yield from self.enter(iteration)

    def _done(self, step: Step) -> Steps[None]:
        """Wait for a step, or for the last merge, which makes the step useless."""
        yield Until(lambda: step.done or self._merges == self._rounds, "its own step")

    def _take(self, change: Tensor) -> None:
        self.parameters = self.parameters + change
        for held in self._fragments:
            held.steps += 1

    def _answers(self) -> Iterator[Send]:
        for number in range(len(self._fragments)):
            yield from self._answer(number)

    def _answer(self, number: int) -> Iterator[Send]:
        """Send the change of a fragment that is wanted, unless the result of the merge before is still on its way."""
        held = self._fragments[number]
        if held.steps and held.wanted == held.round + 1:
            change = self._agreed[held.here] - self.parameters[held.here]
            if self._keeps:
                change += self._left_out[held.here]
                self._left_out[held.here] = change - rounded(self._codec, change)
            yield Send(self._syncer, FragmentChange(number, held.wanted, float(held.steps), change))
            held.wanted = 0

    def _step(self, held: _HeldFragment, merge: int, step: Tensor) -> None:
        if merge > held.round + 1 or len(step) != held.stop - held.start:
            raise ValueError(
                f"the step of merge {merge} came with {len(step)} elements; the fragment has {held.stop - held.start}, "
                f"after merge {held.round}"
            )
        self._hold(held, merge, self._agreed[held.here] + step)

    def _hold(self, held: _HeldFragment, merge: int, values: Tensor) -> None:
        if len(values) != held.stop - held.start:
            raise ValueError(
                f"a merged fragment came with {len(values)} elements; this member's has {held.stop - held.start}"
            )
        if merge <= held.round:
            return
        held.round, held.steps = merge, 0
        self._agreed = self._agreed.clone()
        self._agreed[held.here] = values
        self.parameters = self.parameters.clone()
        self.parameters[held.here] = values


class SyncingLearner(DecoupledLearner):
    """The member whose process runs the syncer of all `members` as well. `clock` returns seconds."""

    def __init__(
        self,
        name: str,
        members: Sequence[str],
        options: DecoupledOptions,
        parameters: Tensor,
        rounds: int,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(name, name, options, parameters, rounds)
        fragments = [parameters[slice(*its)] for its in cut(len(parameters), options.fragments)]
        self.syncer = Syncer(name, members, options, fragments, rounds, clock)

    @property
    def metrics(self) -> Mapping[str, float]:
        """The mean number of changes in a merge, which is small where `overlap` is short for the network."""
        return {"changes_per_merge": self.syncer.changes / self.syncer.merged} if self.syncer.merged else {}

    def remove(self, gone: str) -> Iterable[Send]:
        """Tell the syncer that a learner is lost."""
        return tuple(self.syncer.remove(gone))

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        """Pass messages for the syncer to it, and others to the learner."""
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
