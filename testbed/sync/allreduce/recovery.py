"""The recovery of a round in which a member was lost: the rule of atomic rounds.

Any slice that some survivor holds final stays as it is, and others fetch it: so members that already used it and
members that did not end up with the same values. Slices that no survivor holds are reduced again among the survivors,
each with its own denominator. All survivors compute this from the same holdings, so they agree without another message.
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
    """What a survivor does about `round`, the first one that is not over everywhere."""

    round: int
    #: True if no survivor holds any of the round: all reduce it from the start.
    restart: bool
    #: The elements that no survivor holds: all reduce them again. Empty if the round is over for this member.
    left: Spans
    #: The elements to fetch: member, start, stop. Empty if the round is over for this member.
    fetch: tuple[tuple[str, int, int], ...]

    @property
    def reduces(self) -> bool:
        """True if the round has elements to reduce."""
        return self.restart or bool(self.left)


def orders_for(member: str, holdings: Sequence[Holding]) -> RecoveryOrders:
    """Return the orders of `member`, given what all survivors hold, itself included.

    No member can be two rounds ahead of another, because a round needs every member's update. A member in a later
    round holds this one whole. A member that has not begun this round has not contributed to it, so then no member
    holds any of it: what that member holds is of the round before.
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
    """Return from which members to fetch the missing elements. Members start at different peers, to share the load."""
    names = sorted(held)
    begin = names.index(member)
    fetch = []
    for name in names[begin + 1 :] + names[:begin]:
        fetch += [(name, start, stop) for start, stop in spans.both(missing, held[name])]
        missing = spans.minus(missing, held[name])
    return tuple(fetch)


@dataclass(frozen=True, slots=True)
class FinishedRound:
    """A completed round: its means, and whose updates they are of."""

    number: int
    slices: tuple[MeanSlice, ...]
    means: torch.Tensor


class Attempt:
    """A round in progress over all generations that it takes.

    `values` hold the mean where `slices` say so, elsewhere this member's contribution. If a member is lost, the
    elements that no survivor holds are reduced again, packed into a tensor of their own.

    A try has its own residual until it has ended, because a thread that is still encoding for an aborted try must
    not write into the residual that the next try pays.
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
        """The number of elements."""
        return len(self.values)

    @property
    def final(self) -> Spans:
        """The elements that hold their mean."""
        return spans.union((part.start, part.stop) for part in self.slices)

    @property
    def whole(self) -> bool:
        """True if all elements hold their mean."""
        return spans.count(self.final) == self.elements

    def absorb(self, finals: Iterable[MeanSlice]) -> None:
        """Add the final slices of a group's round, in the numbering of what the group reduced. Known elements count
        once.
        """
        for part in finals:
            if self._packed is None:
                self._add(part)
                continue
            for (low, high), (start, stop) in spans.unpack(self._left, [(part.start, part.stop)]):
                self.values[start:stop] = self._packed[low:high]
                self._add(structs.replace(part, start=start, stop=stop))

    def put(self, start: int, means: torch.Tensor, slices: Iterable[MeanSlice]) -> None:
        """Store means that another member holds, from element `start` on."""
        stop = start + len(means)
        self.values[start:stop] = means
        for part in slices:
            if max(part.start, start) < min(part.stop, stop):
                self._add(structs.replace(part, start=max(part.start, start), stop=min(part.stop, stop)))

    def begin(self) -> Residual | None:
        """Begin a try with all values. Return the residual for it."""
        self._left = ((0, self.elements),)
        if self._residual is not None:
            self._owing = Residual(self._residual.decay)
            self._owing.restore(self._residual.values)
        return self._owing

    def done(self) -> None:
        """Keep the residual of a try that completed the round."""
        if self._residual is not None and self._owing is not None:
            self._residual.values = self._owing.values

    def again(self) -> None:
        """Prepare another try with the elements that are not final, whose residual is again the one before the round.

        Called by the thread that began the group's round, once that round has ended.
        """
        if self._residual is not None and self._owing is not None and self._owing.values is not None:
            self._settle(self._residual, self._owing.values)
        self._packed = self._owing = None

    def pack(self, left: Spans) -> tuple[torch.Tensor, Residual | None]:
        """Return this member's contribution for the elements `left`, one after the other, and the residual for them."""
        self._left = left
        self._packed = torch.cat([self.values[start:stop] for start, stop in left])
        if self._residual is not None:
            self._owing = Residual(self._residual.decay)
            if (owed := self._residual.values) is not None:
                self._owing.values = torch.cat([owed[start:stop] for start, stop in left])
        return self._packed, self._owing

    def means(self, start: int, stop: int) -> torch.Tensor | None:
        """Return a copy of the means of the elements [start, stop), or None unless all are final."""
        held: Span = start, stop
        return None if spans.minus([held], self.final) else self.values[start:stop].clone()

    def finished_round(self, slices: tuple[MeanSlice, ...]) -> FinishedRound:
        """Return the completed round for later requests: a copy, because the caller of the round owns the values
        again.
        """
        return FinishedRound(self.number, slices, self.values.clone())

    def _settle(self, residual: Residual, owing: torch.Tensor) -> None:
        """Keep a try's residual for its elements that became final."""
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
    """Join adjacent slices with the same members and weight."""
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
    """A member can't deliver the means that it holds; `loss` says why."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(loss.why)
        self.loss = loss


def recover(
    group: AllReduceGroup, roster: Roster, orders: RecoveryOrders | None, attempt: Attempt, guard: threading.Condition
) -> RoundResult:
    """Finish an interrupted round by its orders. `guard` is held while the attempt changes.

    Raises:
        SyncError: as for a round of the group.
        Unfetched: a member did not deliver its means.
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
            raise SyncError(f"{peer} sent {len(answer.data)} bytes, not the {most} of [{start}, {stop})")
    except (SyncError, KeyError) as error:  # KeyError: the roster lacks the peer
        why = f"round {attempt.number}, epoch {settings.generation}: {error}"
        raise Unfetched(Loss(peer, why)) from error
    means = torch.frombuffer(answer.data, dtype=attempt.values.dtype)
    with guard:
        attempt.put(start, means, answer.note.slices)
