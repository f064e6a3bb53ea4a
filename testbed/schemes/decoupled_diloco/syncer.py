"""The syncer: holds the model in fragments, and merges one after the other.

    FragmentDue     a member has taken H/P steps        --> the K-th fastest member's count opens the next fragment
    FragmentWanted  to all members                          each answers by what it has, in the midst of a step as well
    FragmentChange  of K members are there              --> the grace window begins
    its end, or all have answered                       --> Θ ← outer(Θ, Δ), and MergedFragment to all

The window is margin · (τ·step - quorum wait - merge): of what a merge may take beside τ steps of the fastest member,
what is left (arXiv 2604.21428, equation 3). The way back is not seen from here, it has to fit what the margin leaves.
Several fragments may be under way at a time, of each one merge. Whose change comes after its merge is not in it.

Under a codec for changes the syncer knows what members hold, by which they count:

    Θ - shown       the change since, with all that the codec has left out   --> MergedStep, to whose change was in it
    shown ← shown + what becomes of that                                     --> MergedWhole, in fp32, to the others

Who was in the merge holds the result of the one before. Of the others nobody knows; as a rule they are few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from testbed.schemes.decoupled_diloco import DecoupledOptions
from testbed.schemes.decoupled_diloco.merge import MERGES
from testbed.schemes.decoupled_diloco.messages import (
    FragmentChange,
    FragmentWanted,
    GraceOver,
    MergedFragment,
    MergedStep,
    MergedWhole,
)
from testbed.sync.codecs import PLAIN, Codec, by_name
from testbed.sync.gossip.effects import Send
from testbed.sync.outer import Nesterov

#: Of a member's step time the newest counts so much.
NEWEST = 0.3


@dataclass(slots=True)
class _Learner:
    """What the syncer knows of a member: for how many fragments it has been due, and how long it takes for one."""

    due: int = 0
    at_s: float | None = None
    slot_s: float | None = None

    def is_due(self, now_s: float, most: int) -> None:
        if self.at_s is not None:
            took = now_s - self.at_s
            self.slot_s = took if self.slot_s is None else self.slot_s + NEWEST * (took - self.slot_s)
        self.at_s = now_s
        self.due = min(self.due + 1, most)


@dataclass(slots=True)
class _Merge:
    """A fragment's merge that is under way, since `began_s`. Who `answered` and is still there holds the one before."""

    round: int
    began_s: float
    changes: dict[str, tuple[float, Tensor]] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Fragment:
    """A fragment of the model after `merges` merges, and what members hold of it under a codec for changes."""

    values: Tensor
    momentum: Tensor
    shown: Tensor
    merges: int = 0
    under_way: _Merge | None = None


class Syncer:
    """The model of `members` in fragments, each of which is merged `rounds` times. `name` is where it lives."""

    def __init__(
        self,
        name: str,
        members: Iterable[str],
        options: DecoupledOptions,
        fragments: Sequence[Tensor],
        rounds: int,
        clock: Callable[[], float],
    ) -> None:
        self.merged = 0  # merges so far, and
        self.changes = 0  # members' changes that they took in
        self._name = name
        self._options = options
        self._rounds = rounds
        self._clock = clock
        self._codec = by_name(options.codec)
        self._outer = Nesterov(options.outer.learning_rate, options.outer.momentum)
        self._learners = {member: _Learner() for member in members}
        self._fragments = [_Fragment(its.clone(), torch.zeros_like(its), its.clone()) for its in fragments]
        self._opened = 0
        self._merge_s = 0.0

    def due(self, member: str) -> Iterator[Send]:
        """A member has taken the steps of a fragment."""
        if member in self._learners:
            # What a slow network holds up is not made up for: fragments would be merged more often than asked.
            self._learners[member].is_due(self._clock(), self._opened + len(self._fragments))
            yield from self._open()

    def changed(self, member: str, message: FragmentChange) -> Iterator[Send]:
        """A member's change; ValueError when it is none of a fragment."""
        fragment = self._fragment(message.fragment)
        if len(message.change) != len(fragment.values) or not message.weight > 0:
            raise ValueError(f"{len(message.change)} elements of weight {message.weight} are no change of a fragment")
        merge = fragment.under_way
        if merge is None or merge.round != message.round or member not in self._learners:
            return
        merge.changes[member] = (message.weight, message.change)
        merge.answered.add(member)
        if merge.changes.keys() >= self._learners.keys():
            yield from self._merge(message.fragment)
        elif len(merge.changes) == self._quorum:
            over = GraceOver(message.fragment, message.round)
            yield Send(self._name, over, after_s=self._grace(merge))

    def grace_over(self, message: GraceOver) -> Iterator[Send]:
        """A merge has waited for long enough."""
        merge = self._fragment(message.fragment).under_way
        if merge is not None and merge.round == message.round:
            yield from self._merge(message.fragment)

    def forget(self, gone: str) -> Iterator[Send]:
        """A member is there no more; what it sent counts still. What waited for it alone goes on."""
        self._learners.pop(gone, None)
        for number, fragment in enumerate(self._fragments):
            if (merge := fragment.under_way) is not None:
                merge.answered.discard(gone)
                if len(merge.changes) >= self._quorum:
                    yield from self._merge(number)
        yield from self._open()

    def came(self, member: str) -> Iterator[Send]:
        """A member that comes while others train begins with the model as it is."""
        self._learners[member] = _Learner(self._opened)
        for number, fragment in enumerate(self._fragments):
            yield Send(member, self._whole(number))
            if fragment.under_way is not None:
                yield Send(member, FragmentWanted(number, fragment.under_way.round))

    @property
    def _quorum(self) -> int:
        return min(self._options.quorum, len(self._learners))

    def _fragment(self, number: int) -> _Fragment:
        if not number < len(self._fragments):
            raise ValueError(f"fragment {number}, of {len(self._fragments)}")
        return self._fragments[number]

    def _open(self) -> Iterator[Send]:
        """Have members send the fragments that are due, each in its turn."""
        due = sorted((its.due for its in self._learners.values()), reverse=True)[self._quorum - 1]
        while self._opened < min(due, self._rounds * len(self._fragments)):
            number = self._opened % len(self._fragments)
            fragment = self._fragments[number]
            if fragment.under_way is not None:
                return
            fragment.under_way = _Merge(fragment.merges + 1, self._clock())
            self._opened += 1
            for member in self._learners:
                yield Send(member, FragmentWanted(number, fragment.merges + 1))

    def _grace(self, merge: _Merge) -> float:
        """Seconds to wait for others, with the quorum there."""
        slots = [its.slot_s for its in self._learners.values() if its.slot_s is not None]
        step_s = min(slots, default=0.0) * len(self._fragments) / self._options.every
        waited_s = self._clock() - merge.began_s
        return max(self._options.margin * (self._options.overlap * step_s - waited_s - self._merge_s), 0.0)

    def _merge(self, number: int) -> Iterator[Send]:
        began_s = self._clock()
        fragment = self._fragments[number]
        assert fragment.under_way is not None
        merge = fragment.under_way
        changes = [merge.changes[member] for member in sorted(merge.changes)]
        self._outer.step(fragment.values, MERGES[self._options.merge](changes), fragment.momentum)
        fragment.merges, fragment.under_way = fragment.merges + 1, None
        self.merged, self.changes = self.merged + 1, self.changes + len(changes)
        step: MergedStep | None = None
        if self._options.in_changes:
            step = MergedStep(number, fragment.merges, fragment.values - fragment.shown)
            fragment.shown = fragment.shown + rounded(self._codec, step.step)
        whole = self._whole(number)
        self._merge_s = self._clock() - began_s
        for member in self._learners:
            holds_the_last = member in merge.answered and member != self._name  # itself it tells without a codec
            yield Send(member, step if step is not None and holds_the_last else whole)
        yield from self._open()

    def _whole(self, number: int) -> MergedFragment | MergedWhole:
        fragment = self._fragments[number]
        if self._options.in_changes:
            return MergedWhole(number, fragment.merges, fragment.shown)
        return MergedFragment(number, fragment.merges, rounded(self._codec, fragment.values))


def rounded(codec: Codec, values: Tensor) -> Tensor:
    """A copy of the values, as they come out at the other end of the codec; twice is as once."""
    return values.clone() if codec is PLAIN else codec.decode(codec.encode(values), len(values))
