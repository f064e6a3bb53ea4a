"""One round's sums at one member: which chunks have whose updates, and what is final. No I/O, no clock, no lock.

A chunk's life at a member, where a bitmap says whose updates its sum holds:

    nothing --add--> partial --add--> all below this member --(root) finish, (others) accept--> the mean

`sums` is one buffer for all of it. A partial sum may be overwritten by the mean: the mean exists only once the
root holds every member's update, so this member's partial sum has then been received and added.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from testbed.plan import Plan
from testbed.sync.codecs import PLAIN
from testbed.sync.duty import Duty
from testbed.sync.errors import FrameError, SyncError
from testbed.sync.layout import Layout


class Part(NamedTuple):
    """What a sum is made of: whose updates (bitmap), their weights' sum, the epoch they are ready to go by next."""

    contributors: int
    weight: float
    successor: int


class Reduction:
    """The state of every chunk of one round under one plan, summed in `sums` (flat, `layout.elements` long).

    Weighted: `own` scales this member's values, peers' arrive scaled, `finish` divides by the sum of weights.
    `lost` and `duplicated` are bitmaps of members whose update a mean left out, or that came a second time.
    """

    def __init__(self, plan: Plan, duties: tuple[Duty, ...], layout: Layout, sums: torch.Tensor) -> None:
        chunks = len(layout.chunks)
        self.plan = plan
        self.duties = duties
        self.layout = layout
        self.lost = 0
        self.duplicated = 0
        self._everybody = (1 << len(plan.members)) - 1
        self._sums = sums
        self._parts: list[Part | None] = [None] * chunks
        self._final = bytearray(chunks)
        self._agreed: int | None = None

    @property
    def encodes(self) -> bool:
        """Whether this member has chunks to encode."""
        return any(duty.partial_codec is not PLAIN or duty.mean_codec is not PLAIN for duty in self.duties)

    @property
    def agreed(self) -> int:
        """The epoch to use next: every member was ready for it when the round began. For when the round is done."""
        assert self._agreed is not None
        return self._agreed

    def view(self, number: int) -> torch.Tensor:
        """The elements of a chunk."""
        chunk = self.layout.chunks[number]
        return self._sums[chunk.start : chunk.stop]

    def own(
        self, number: int, values: torch.Tensor, weight: float, successor: int, owed: torch.Tensor | None = None
    ) -> Part | None:
        """Add this member's values, scaled by their weight, and what it owes; the part to pass on if that completes it.

        Both are added to each other first, so that with one peer the sum does not depend on who came first.
        """
        held = self._parts[number]
        scale = weight
        if owed is not None:
            values, scale = torch.mul(values, weight).add_(owed), 1.0
        if held is None:
            torch.mul(values, scale, out=self.view(number))
        else:
            self.view(number).add_(values, alpha=scale)
        return self._join(number, Part(self._duty(number).own, weight, successor))

    def add(self, number: int, peer: str, values: torch.Tensor, part: Part) -> Part | None:
        """Add a child's partial sum; the part to pass on if that completes it.

        What is there already is left out and counted: a sum that holds both an old and a new update is useless.
        """
        below = self._duty(number).partials_from.get(peer)
        if below is None or not part.contributors or part.contributors & ~below:
            raise FrameError(f"{peer} has no business to send updates of {self.names(part.contributors)} here")
        held = self._parts[number]
        if held is None:
            self.view(number).copy_(values)
        elif held.contributors & part.contributors:
            self.duplicated |= held.contributors & part.contributors
            return None
        else:
            self.view(number).add_(values)
        return self._join(number, part)

    def finish(self, number: int) -> Part:
        """At the root: turn a complete sum into the mean; the part to broadcast."""
        part = self._parts[number]
        assert part is not None
        if part.weight <= 0:
            raise SyncError("the members' weights add up to 0: no mean exists")
        self.view(number).div_(part.weight)
        self._close(number, part)
        return part

    def accept(self, number: int, peer: str, values: torch.Tensor, part: Part) -> bool:
        """Take the mean from the parent in the broadcast tree; False if it was there already."""
        if peer != self._duty(number).mean_from:
            raise FrameError(f"{peer} has no business to send a mean here")
        if self._final[number]:
            self.duplicated |= part.contributors
            return False
        self.view(number).copy_(values)
        self._close(number, part)
        return True

    def awaited(self) -> dict[str, str]:
        """The peers that this member waits for, each with what it owes."""
        owed: dict[str, str] = {}
        for number, final in enumerate(self._final):
            if final:
                continue
            duty = self._duty(number)
            if duty.mean_from is not None:
                owed.setdefault(duty.mean_from, "the mean")
            held = self._parts[number]
            have = held.contributors if held else 0
            for child, below in duty.partials_from.items():
                if below & ~have:
                    owed[child] = "its partial sum"
        return owed

    def names(self, bitmap: int) -> list[str]:
        """The members of a bitmap."""
        return [name for i, name in enumerate(self.plan.members) if bitmap >> i & 1]

    def _duty(self, number: int) -> Duty:
        return self.duties[self.layout.chunks[number].tree]

    def _join(self, number: int, part: Part) -> Part | None:
        held = self._parts[number]
        if held is not None:
            successor = part.successor if part.successor == held.successor else self.plan.epoch
            part = Part(held.contributors | part.contributors, held.weight + part.weight, successor)
        self._parts[number] = part
        return part if part.contributors == self._duty(number).expected else None

    def _close(self, number: int, part: Part) -> None:
        if self._agreed is None:
            self._agreed = part.successor
        elif self._agreed != part.successor:
            raise FrameError(f"means disagree on the epoch to use next: {self._agreed} and {part.successor}")
        self.lost |= self._everybody & ~part.contributors
        self._final[number] = 1
