"""What a survivor does about a round that a member was lost in: the rule of atomic rounds (see atomic_rounds.py).

What any member holds final stays as it is, and others fetch it; what nobody holds is reduced again among those who are
left, each slice with its own denominator.

The rule of atomic rounds: what becomes of a round that a member was lost in. Pure.

A slice that anyone holds final is broadcast again as it is, so that who used it and who did not yet end up with the
same; only slices that nobody holds are reduced again, among the survivors. All of them reckon it from the same
holdings, so they agree without another word.

The round that a member is in, over all generations that it takes, and the one before it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from msgspec import structs

from testbed.protocol import Holding, MeanSlice
from testbed.sync.allreduce import spans
from testbed.sync.allreduce.fetch import FetchRequest, MeansNote, Wanted, fetch
from testbed.sync.allreduce.group import AllReduceGroup, Roster
from testbed.sync.allreduce.receiver import Loss
from testbed.sync.allreduce.round import RoundResult, Tally
from testbed.sync.allreduce.spans import Span, Spans
from testbed.sync.codecs import Residual
from testbed.sync.errors import SyncError


@dataclass(frozen=True, slots=True)
class RecoveryOrders:
    """What a survivor does about `round`, the first one that is not over everywhere.

    With `anew` nobody holds anything of it: it begins as if it had never begun. Else this member asks others for the
    elements of `fetch` (member, start, stop), and `left`, which nobody holds, are reduced among all. Both are empty
    for whom the round is over.
    """

    round: int
    anew: bool
    left: Spans
    fetch: tuple[tuple[str, int, int], ...]

    @property
    def reduces(self) -> bool:
        """Whether there is something to reduce in the round."""
        return self.anew or bool(self.left)


def orders_for(member: str, holdings: Sequence[Holding]) -> RecoveryOrders:
    """What `member` does, by what all survivors hold, itself among them.

    Nobody can be two rounds ahead of another: a round needs everybody's update. Who is in a later round holds this
    one whole. Who is not in this one yet has not contributed to it, so nobody then holds any of it: what it holds is of
    the round before.
    """
    first = {holding.member: holding.round + holding.over for holding in holdings}
    number = min(first.values())
    final = {its.member: spans.union(its.final) for its in holdings if its.round == number and not its.over}
    elements = max((its.elements for its in holdings if its.member in final), default=0)
    whole: Spans = ((0, elements),) if elements else ()
    held = {name: whole if first[name] > number else final.get(name, ()) for name in first}
    anywhere = spans.union(span for its in held.values() for span in its)
    if not anywhere:
        return RecoveryOrders(number, True, (), ())
    if first[member] > number:
        return RecoveryOrders(number, False, (), ())
    return RecoveryOrders(
        number, False, spans.minus(whole, anywhere), _fetches(member, spans.minus(anywhere, held[member]), held)
    )


def _fetches(member: str, missing: Spans, held: Mapping[str, Spans]) -> tuple[tuple[str, int, int], ...]:
    """From whom to get what is missing: each member begins with another one, so that the asked share the work."""
    names = sorted(held)
    begin = names.index(member)
    fetch = []
    for name in names[begin + 1 :] + names[:begin]:
        fetch += [(name, start, stop) for start, stop in spans.both(missing, held[name])]
        missing = spans.minus(missing, held[name])
    return tuple(fetch)


@dataclass(frozen=True, slots=True)
class Past:
    """A round that is over: its means, and whose updates they are of."""

    number: int
    slices: tuple[MeanSlice, ...]
    means: torch.Tensor


class Attempt:
    """A round's `values`: where `slices` say so they are the mean, elsewhere what this member contributes.

    A member that is lost in the middle leaves some elements final. Those that nobody holds are reduced again, packed
    into a tensor of their own.

    What a try owes is its own until it has ended: a thread that is still encoding for one that was aborted must not
    write into what the next one pays.
    """

    def __init__(self, number: int, values: torch.Tensor, weight: float, residual: Residual | None) -> None:
        self.number = number
        self.values = values
        self.weight = weight
        self.slices: tuple[MeanSlice, ...] = ()
        self._residual = residual
        self._left: Spans = ()
        self._packed: torch.Tensor | None = None
        self._owing: Residual | None = None

    @property
    def elements(self) -> int:
        """How many there are."""
        return len(self.values)

    @property
    def final(self) -> Spans:
        """The elements that hold their mean."""
        return spans.union((part.start, part.stop) for part in self.slices)

    @property
    def whole(self) -> bool:
        """Whether all elements do."""
        return spans.count(self.final) == self.elements

    def absorb(self, finals: Iterable[MeanSlice]) -> None:
        """A group's round ended with these final, of what it was given to reduce. Those that are known count once."""
        for part in finals:
            if self._packed is None:
                self._add(part)
                continue
            for (low, high), (start, stop) in spans.unpack(self._left, [(part.start, part.stop)]):
                self.values[start:stop] = self._packed[low:high]
                self._add(structs.replace(part, start=start, stop=stop))

    def put(self, start: int, means: torch.Tensor, slices: Iterable[MeanSlice]) -> None:
        """Take means from element `start` on that another member holds."""
        stop = start + len(means)
        self.values[start:stop] = means
        for part in slices:
            if max(part.start, start) < min(part.stop, stop):
                self._add(structs.replace(part, start=max(part.start, start), stop=min(part.stop, stop)))

    def begin(self) -> Residual | None:
        """All values are tried: what this member owes of them."""
        self._left = ((0, self.elements),)
        if self._residual is not None:
            self._owing = Residual(self._residual.decay)
            self._owing.restore(self._residual.values)
        return self._owing

    def done(self) -> None:
        """The round of all values is over: owe what that left to owe."""
        if self._residual is not None and self._owing is not None:
            self._residual.values = self._owing.values

    def again(self) -> None:
        """Begin anew with what is not final: owe what was owed of that before the round. For the thread that
        began the group's round, once that has ended."""
        if self._residual is not None and self._owing is not None and self._owing.values is not None:
            self._settle(self._residual, self._owing.values)
        self._packed = self._owing = None

    def pack(self, left: Spans) -> tuple[torch.Tensor, Residual | None]:
        """What this member contributes of the elements `left`, one after the other, and what it owes of them."""
        self._left = left
        self._packed = torch.cat([self.values[start:stop] for start, stop in left])
        if self._residual is not None:
            self._owing = Residual(self._residual.decay)
            if (owed := self._residual.values) is not None:
                self._owing.values = torch.cat([owed[start:stop] for start, stop in left])
        return self._packed, self._owing

    def means(self, start: int, stop: int) -> torch.Tensor | None:
        """A copy of the means of the elements [start, stop); None while not all of them are final."""
        held: Span = start, stop
        return None if spans.minus([held], self.final) else self.values[start:stop].clone()

    def past(self, slices: tuple[MeanSlice, ...]) -> Past:
        """The round as others may ask for it, once it is over: a copy, since its values are their owner's again."""
        return Past(self.number, slices, self.values.clone())

    def _settle(self, residual: Residual, owing: torch.Tensor) -> None:
        """Owe what a try left to owe of the elements that it was given, where they are final."""
        before = residual.values
        kept = torch.zeros(self.elements) if before is None else before.clone()
        for (low, high), (start, stop) in spans.unpack(self._left, [(0, len(owing))]):
            kept[start:stop] = owing[low:high]
        for start, stop in spans.minus(self._left, self.final):
            kept[start:stop] = 0 if before is None else before[start:stop]
        residual.values = kept

    def _add(self, part: MeanSlice) -> None:
        fresh = spans.minus([(part.start, part.stop)], self.final)
        added = (structs.replace(part, start=start, stop=stop) for start, stop in fresh)
        self.slices = tuple(sorted((*self.slices, *added), key=lambda one: one.start))


def joined(slices: Iterable[MeanSlice]) -> tuple[MeanSlice, ...]:
    """The same with neighbours that have the same members and weight as one."""
    found: list[MeanSlice] = []
    for part in slices:
        last = found[-1] if found else None
        if last and (last.stop, last.members, last.weight) == (part.start, part.members, part.weight):
            found[-1] = structs.replace(last, stop=part.stop)
        else:
            found.append(part)
    return tuple(found)


#: Elements fetched at a time: 1 MiB of float32.
PIECE = 256 * 1024

log = logging.getLogger(__name__)


class Unfetched(Exception):
    """What another member holds can't be had from it; `loss` says why."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(loss.why)
        self.loss = loss


def recover(
    group: AllReduceGroup, roster: Roster, orders: RecoveryOrders | None, attempt: Attempt, guard: threading.Condition
) -> RoundResult:
    """Finish the round of an attempt that is not to begin anew, by `orders`. `guard` is held while the attempt changes.

    SyncError as a round of the group; Unfetched.
    """
    done = None
    if orders is not None and not attempt.whole:
        for peer, start, stop in orders.fetch:
            for at in range(start, stop, PIECE):
                _fetch(group, roster, peer, attempt, at, min(at + PIECE, stop), guard)
        if orders.left:
            with guard:
                packed, residual = attempt.pack(orders.left)
            done = group.begin(packed, attempt.weight, residual)()
            with guard:
                attempt.absorb(done.slices)
                attempt.again()
    log.info("%s: round %d recovered: %s", group.settings.member, attempt.number, attempt.slices)
    slices = joined(attempt.slices)
    if done is None:
        nothing = 0.0, 0.0, 0, 0
        return RoundResult(
            attempt.values, attempt.number, group.settings.generation, True, *nothing, slices=slices, tally=Tally()
        )
    return replace(done, tensor=attempt.values, round=attempt.number, slices=slices)


def _fetch(
    group: AllReduceGroup,
    roster: Roster,
    peer: str,
    attempt: Attempt,
    start: int,
    stop: int,
    guard: threading.Condition,
) -> None:
    settings = group.settings
    request = FetchRequest(Wanted.MEANS, settings.generation, attempt.number, start, stop)
    most = (stop - start) * attempt.values.element_size()
    try:
        answer = fetch(peer, roster[peer], settings, request, most)
        if not isinstance(answer.note, MeansNote) or len(answer.data) != most:
            raise SyncError(f"{len(answer.data)} bytes instead of the {most} of [{start}, {stop})")
    except (SyncError, KeyError) as error:  # KeyError: nobody said where that one listens
        why = f"round {attempt.number}, epoch {settings.generation}: {error}"
        raise Unfetched(Loss(peer, why)) from error
    means = torch.frombuffer(answer.data, dtype=attempt.values.dtype)
    with guard:
        attempt.put(start, means, answer.note.slices)
