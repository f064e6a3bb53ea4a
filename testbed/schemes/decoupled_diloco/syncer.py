"""The syncer of Decoupled DiLoCo: holds the model in fragments, and merges one after the other.

    FragmentDue     a member has taken H/P steps        --> the K-th fastest member's count opens the next fragment
    FragmentWanted  to all members                          each answers with its change, also during a step
    FragmentChange  of K members are there              --> the grace window begins
    its end, or all have answered                       --> Θ ← outer(Θ, Δ), and MergedFragment to all

The window is margin · (τ·step - quorum wait - merge): a fraction of the time left of τ steps of the fastest member
(arXiv 2604.21428, equation 3). The syncer can't measure the way back, which has to fit into the rest. Several fragments
may be under way at a time, each with one merge. A change that comes after its merge is not in it.

In messages `round` counts the merges of one fragment. Under a codec for changes the syncer keeps an anchor a, the
parameters that members hold after the last merge:

    Θ - a           the change since, with all that the codec has left out   --> MergedStep, to members in the merge
    a ← a + that change as the codec decodes it                              --> MergedWhole, in fp32, to the others

A member whose change is in a merge holds the result of the merge before. Other members may not; as a rule they are few.

The merged change Δ of a fragment (appendix D.2):

    mean      Δ = Σ w_m Δ_m / Σ w_m
    radial    Δ = (Σ w_m ‖Δ_m‖ / Σ w_m) · φ(Σ w_m φ(Δ_m) / Σ w_m),   φ(x) = x / ‖x‖, φ(0) = 0

The changes of M members that point in all directions, each of length R, have a mean of length R/√M: the outer learning
rate would have to grow with √M. Radial-directional averaging keeps the length R, also at an optimum, where changes
cancel, so training converges only as far as members' steps shrink. The authors average the embedding's changes as they
are; this syncer does not know which parameters those are, and averages each fragment as one vector [ours].
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from testbed.sync.codecs import by_name, rounded
from testbed.sync.gossip.effects import Send
from testbed.sync.gossip.message import CodedElements, Elements, Message, message
from testbed.sync.gossip.neighbours import WeightedMean

if TYPE_CHECKING:
    from torch import Tensor

    from testbed.schemes.decoupled_diloco import DecoupledOptions


@message(26)
class FragmentDue(Message):
    """The sender has taken the steps after which another fragment is to be merged."""


@message(27)
class FragmentWanted(Message):
    """The syncer asks the receiver for its change of a fragment."""

    fragment: int
    round: int


@message(28)
class FragmentChange(Message):
    """The change by the sender's steps since the last merge of the fragment, Θ - θ, and its weight."""

    fragment: int
    round: int
    weight: float
    change: CodedElements


@message(29)
class MergedFragment(Message):
    """A fragment's parameters after its merge of this round."""

    fragment: int
    round: int
    values: CodedElements


@message(30)
class GraceOver(Message):
    """The syncer's reminder to itself that the grace window of a merge is over."""

    fragment: int
    round: int


@message(31)
class LearnerCame(Message):
    """The sender joins while others train, and asks for the model."""


@message(40)
class MergedStep(Message):
    """The change of a fragment by this merge, for members that hold the result of the merge before."""

    fragment: int
    round: int
    step: CodedElements


@message(41)
class MergedWhole(Message):
    """A fragment's parameters after this merge, for members that may not hold the result of the merge before."""

    fragment: int
    round: int
    values: Elements


#: The weight of the newest step time of a member in its estimate.
NEWEST = 0.3

#: (weight, change) of each member; weights are positive.
Weighed = Collection[tuple[float, "Tensor"]]


def mean(changes: Weighed) -> Tensor:
    """Return the weighted mean of the changes."""
    average = WeightedMean()
    for weight, change in changes:
        average.add(change, weight)
    return average.value


def radial(changes: Weighed) -> Tensor:
    """Return the mean direction with the mean length of the changes; their plain mean where directions cancel out."""
    import torch

    lengths = [float(change.norm()) for _, change in changes]
    if not any(lengths):
        return mean(changes)
    along = mean(
        [(weight, change / (length or 1.0)) for (weight, change), length in zip(changes, lengths, strict=True)]
    )
    size = float(along.norm())
    if size <= torch.finfo(along.dtype).eps:
        return mean(changes)
    weights = [weight for weight, _ in changes]
    length = sum(weight * its for weight, its in zip(weights, lengths, strict=True)) / sum(weights)
    return along * (length / size)


MERGES = {"mean": mean, "radial": radial}


@dataclass(slots=True)
class _Learner:
    """A member as the syncer knows it."""

    #: The fragments for which the member has taken enough steps.
    due: int = 0
    #: The time of its last FragmentDue.
    at_s: float | None = None
    #: An estimate of the time between two of them.
    slot_s: float | None = None

    def record_due(self, now_s: float, most: int) -> None:
        if self.at_s is not None:
            took = now_s - self.at_s
            self.slot_s = took if self.slot_s is None else self.slot_s + NEWEST * (took - self.slot_s)
        self.at_s = now_s
        self.due = min(self.due + 1, most)


@dataclass(slots=True)
class _Merge:
    """A fragment's merge that is under way at the syncer: the members' changes so far, and which members answered."""

    round: int
    began_s: float
    #: (weight, change) by member.
    changes: dict[str, tuple[float, Tensor]] = field(default_factory=dict)
    #: The members that answered and are still there: they hold the result of the merge before.
    answered: set[str] = field(default_factory=set)
    #: Whether the grace window has begun.
    in_grace: bool = False


@dataclass(slots=True)
class _Fragment:
    """A fragment of the model after `merges` merges."""

    values: Tensor
    momentum: Tensor
    #: The values that members hold after the last merge, under a codec for changes.
    anchor: Tensor
    merges: int = 0
    under_way: _Merge | None = None


class Syncer:
    """The model of `members` in fragments, each of which is merged `rounds` times, in the process of `name`."""

    def __init__(
        self,
        name: str,
        members: Iterable[str],
        options: DecoupledOptions,
        fragments: Sequence[Tensor],
        rounds: int,
        clock: Callable[[], float],
    ) -> None:
        self.merged = 0  # merges so far
        self.changes = 0  # members' changes in all merges so far
        self._name = name
        self._options = options
        self._rounds = rounds
        self._clock = clock
        self._codec = by_name(options.codec)
        self._outer = options.outer.optimizer
        self._learners = {member: _Learner() for member in members}
        self._fragments = [_Fragment(its.clone(), its.new_zeros(its.shape), its.clone()) for its in fragments]
        self._opened = 0
        self._merge_s = 0.0

    def due(self, member: str) -> Iterator[Send]:
        """Record that a member has taken the steps of a fragment, and ask members for the fragments that are due."""
        if member in self._learners:
            # Delays by a slow network are not made up for: fragments would be merged more often than asked.
            self._learners[member].record_due(self._clock(), self._opened + len(self._fragments))
            yield from self._request_due()

    def changed(self, member: str, message: FragmentChange) -> Iterator[Send]:
        """Add a member's change to its merge. Raises ValueError where it does not fit a fragment."""
        fragment = self._fragment(message.fragment)
        if len(message.change) != len(fragment.values) or not message.weight > 0:
            size = len(fragment.values)
            raise ValueError(
                f"a change has {len(message.change)} elements and weight {message.weight}; "
                f"a fragment has {size} elements, a weight is above 0"
            )
        merge = fragment.under_way
        if merge is None or merge.round != message.round or member not in self._learners:
            return
        merge.changes[member] = (message.weight, message.change)
        merge.answered.add(member)
        yield from self._go_on(message.fragment, merge)

    def grace_over(self, message: GraceOver) -> Iterator[Send]:
        """End the wait of a merge for further changes."""
        merge = self._fragment(message.fragment).under_way
        if merge is not None and merge.round == message.round:
            yield from self._merge(message.fragment)

    def remove(self, gone: str) -> Iterator[Send]:
        """Go on without a member. The changes that it sent still count, and merges that waited for it alone go on.

        If it was so quick that the others have taken the steps of fewer fragments than were merged, they count from now
        on as if they had kept up: otherwise no fragment would be merged until they have.
        """
        self._learners.pop(gone, None)
        if self._learners and (behind := self._opened - self._kth_due()) > 0:
            for its in self._learners.values():
                its.due = min(its.due + behind, self._opened + len(self._fragments))
        for number, fragment in enumerate(self._fragments):
            if (merge := fragment.under_way) is not None:
                merge.answered.discard(gone)
                yield from self._go_on(number, merge)
        yield from self._request_due()

    def came(self, member: str) -> Iterator[Send]:
        """Send the model to a member that joins while others train."""
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
            raise ValueError(f"there is no fragment {number}: the model has {len(self._fragments)}, numbered from 0")
        return self._fragments[number]

    def _kth_due(self) -> int:
        """Return the number of fragments for which a quorum of members has taken the steps."""
        return sorted((its.due for its in self._learners.values()), reverse=True)[self._quorum - 1]

    def _request_due(self) -> Iterator[Send]:
        """Ask all members for their changes of each fragment that is due, one fragment after the other."""
        due = self._kth_due()
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
        """Return the seconds to wait for other members once the quorum is there."""
        slots = [its.slot_s for its in self._learners.values() if its.slot_s is not None]
        step_s = min(slots, default=0.0) * len(self._fragments) / self._options.every
        waited_s = self._clock() - merge.began_s
        return max(self._options.margin * (self._options.overlap * step_s - waited_s - self._merge_s), 0.0)

    def _go_on(self, number: int, merge: _Merge) -> Iterator[Send]:
        """Merge a fragment if all members' changes are there; else begin the grace window if those of a quorum are."""
        if merge.changes.keys() >= self._learners.keys():
            yield from self._merge(number)
        elif len(merge.changes) >= self._quorum and not merge.in_grace:
            merge.in_grace = True
            yield Send(self._name, GraceOver(number, merge.round), after_s=self._grace(merge))

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
            step = MergedStep(number, fragment.merges, fragment.values - fragment.anchor)
            fragment.anchor = fragment.anchor + rounded(self._codec, step.step)
        whole = self._whole(number)
        self._merge_s = self._clock() - began_s
        for member in self._learners:
            # Fragments that the syncer sends to its own member pass no codec.
            holds_the_last = member in merge.answered and member != self._name
            yield Send(member, step if step is not None and holds_the_last else whole)
        yield from self._request_due()

    def _whole(self, number: int) -> MergedFragment | MergedWhole:
        fragment = self._fragments[number]
        if self._options.in_changes:
            return MergedWhole(number, fragment.merges, fragment.anchor)
        return MergedFragment(number, fragment.merges, rounded(self._codec, fragment.values))
