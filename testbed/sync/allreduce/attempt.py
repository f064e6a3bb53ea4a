"""The round that a member is in, over all generations that it takes, and the one before it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from msgspec.structs import replace

from testbed.protocol import MeanSlice
from testbed.sync.allreduce import spans
from testbed.sync.allreduce.spans import Span, Spans
from testbed.sync.codecs import Residual


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
                self._add(replace(part, start=start, stop=stop))

    def put(self, start: int, means: torch.Tensor, slices: Iterable[MeanSlice]) -> None:
        """Take means from element `start` on that another member holds."""
        stop = start + len(means)
        self.values[start:stop] = means
        for part in slices:
            if max(part.start, start) < min(part.stop, stop):
                self._add(replace(part, start=max(part.start, start), stop=min(part.stop, stop)))

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
        added = (replace(part, start=start, stop=stop) for start, stop in fresh)
        self.slices = tuple(sorted((*self.slices, *added), key=lambda one: one.start))


def joined(slices: Iterable[MeanSlice]) -> tuple[MeanSlice, ...]:
    """The same with neighbours that have the same members and weight as one."""
    found: list[MeanSlice] = []
    for part in slices:
        if found and replace(found[-1], start=part.start, stop=part.stop) == part and found[-1].stop == part.start:
            found[-1] = replace(found[-1], stop=part.stop)
        else:
            found.append(part)
    return tuple(found)
