"""One round's sums at one member: which chunks have whose updates, and what is final. No I/O, no clock, no lock.

A chunk's life at a member, where a bitmap says whose updates its sum holds:

    nothing --own, add--> partial --add--> all below this member --(root) finish, (others) accept--> the mean

A member's own values are not copied: where nobody is below it, what it passes on are its values themselves; else
they are added when the first child's sum comes. The mean takes the place of the sum in `sums`: it exists only once
the root holds every member's update, so this member's partial sum has then been received and added. From there it
is copied over the values, which until then are what this member contributed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch

from testbed.protocol import Slice
from testbed.sync.allreduce.layout import Chunk, Layout
from testbed.sync.allreduce.role import Duty, Role
from testbed.sync.buffers import Sums
from testbed.sync.errors import FrameError, SyncError


class Part(NamedTuple):
    """What a sum is made of: whose updates (bitmap), their weights' sum, the epoch they are ready to go by next.

    None stands for the epoch that this member itself is ready for, which it says when the sum leaves it: see `sealed`.
    One of them `overlaps` rounds (see Exchange).
    """

    contributors: int
    weight: float
    successor: int | None
    overlaps: bool = False


class Share(NamedTuple):
    """This member's own: its values (flat), their weight, what says the epoch it is ready to go by next, and the newest
    one that all are known to be ready for.

    `fixed`: it always says the same, since another round may begin with the first mean of this one. This member
    `overlaps` rounds, or may from now on.
    """

    values: torch.Tensor
    weight: float
    ready: Callable[[], int]
    confirmed: Callable[[], int]
    fixed: bool = False
    overlaps: bool = False


class Update(NamedTuple):
    """A child's partial sum: `scale` × `values`."""

    values: torch.Tensor
    scale: float
    part: Part


class Reduction:
    """The state of every chunk of one round, at a member with `role`, summed in `sums`.

    `epoch` is what the round goes by, and the one to go by next unless all contributors to some chunk say another: each
    says so as that chunk leaves it, and a root says what all are known to be ready for, so who comes to hold a plan in
    the midst of a round may still have it in the next.
    `lost` and `duplicated` are bitmaps of members whose update a mean left out, or that came a second time.
    `overlapped`: some member overlaps rounds; known with the first mean.

    Sums are weighted; `finish` divides by the sum of the weights. With `in_order` a member's own values come first
    and its children's after them by name, so that sums have the same bits run after run; what comes early is kept
    aside, which takes up to a model for each child but the last.
    """

    def __init__(self, epoch: int, members: tuple[str, ...], role: Role, layout: Layout, sums: Sums, in_order: bool):
        chunks = len(layout.chunks)
        self.layout = layout
        self.role = role
        self.lost = 0
        self.duplicated = 0
        self.overlapped = False
        self._epoch = epoch
        self._members = members
        self._sums = sums
        self._in_order = in_order
        self._early: dict[int, dict[str, Update]] = {}
        self._share: Share | None = None
        self._ready: Callable[[], int] = lambda: epoch
        self._confirmed: Callable[[], int] = lambda: epoch
        self._parts: list[Part | None] = [None] * chunks
        self._summed = bytearray(chunks)
        self._final = bytearray(chunks)
        self._made: list[Part | None] = [None] * chunks
        self._unfinished = [len(key) for key in layout.keys]
        self._agreed: int | None = None

    @property
    def share(self) -> Share:
        """This member's own; for when it has entered, and not left."""
        assert self._share is not None
        return self._share

    @property
    def agreed(self) -> int | None:
        """The newest epoch that all contributors to one of the chunks whose means are there were ready to go by next.

        None until a mean is there. When all are there it is the same at every member, and what all go by next.
        """
        return self._agreed

    def sealed(self, part: Part) -> Part:
        """A part as it leaves this member, whose own word is in it now."""
        own = self._ready()
        return part._replace(successor=own if part.successor in (None, own) else self._epoch)

    def concluded(self, part: Part) -> Part:
        """A mean's part as it leaves its root, whose contributors may all be ready for more than they said."""
        part = self.sealed(part)
        assert part.successor is not None
        return part._replace(successor=max(part.successor, self._confirmed()))

    def view(self, number: int) -> torch.Tensor:
        """The sum of a chunk."""
        chunk = self.layout.chunks[number]
        return self._sums.view(chunk.start, chunk.stop)

    def duty(self, number: int) -> Duty:
        """This member's duty in a chunk's tree."""
        return self.role.duties[self.layout.chunks[number].tree]

    def enter(self, share: Share) -> None:
        """This member takes part; `own` then adds its values chunk by chunk."""
        self._share, self._ready, self._confirmed = share, share.ready, share.confirmed

    def leave(self) -> None:
        """The round is over here: let go of this member's values."""
        self._share = None

    def own(self, number: int, owed: torch.Tensor | None = None) -> Part | None:
        """Let this member's values, and what it `owed`, count for a chunk; the part to pass on if that completes it."""
        if self._parts[number] is not None:
            own = self._scaled(self._values(number), self.share.weight)
            self.view(number).add_(own if owed is None else own + owed)
        elif owed is not None:
            self._sum_own(number)
            self.view(number).add_(owed)
        complete = self._join(number, Part(self.duty(number).own, self.share.weight, None, self.share.overlaps))
        return self._add_early(number) or complete

    def add(self, number: int, peer: str, update: Update) -> Part | None:
        """Add a child's partial sum; the part to pass on if that completes it.

        What is there already is left out and counted: a sum that holds both an old and a new update is useless.
        `update` is only lent.
        """
        below = self.duty(number).partials_from.get(peer)
        contributors = update.part.contributors
        if below is None or not contributors or contributors & ~below:
            raise FrameError(f"{peer} has no business to send updates of {self.names(contributors)} here")
        held = self._parts[number]
        if held is not None and held.contributors & contributors:
            self.duplicated |= held.contributors & contributors
            return None
        if self._in_order and peer != self._next_in_order(number):
            self._early.setdefault(number, {})[peer] = update._replace(values=update.values.clone())
            return None
        complete = self._sum(number, update)
        return self._add_early(number) or complete

    def finish(self, number: int) -> list[int]:
        """At the root: turn a complete sum into the mean. The chunks whose means may be broadcast now.

        That is this one, or, with keys, all of its key when this is the last of them.
        """
        part = self.part(number)
        if part.weight <= 0:
            raise SyncError("the members' weights add up to 0: no mean exists")
        if not self._summed[number]:
            self._sum_own(number)
        self.view(number).div_(part.weight)
        key = self.layout.chunks[number].key
        if key is None:
            return [number]
        self._unfinished[key] -= 1
        return [] if self._unfinished[key] else self.layout.keys[key]

    def land(self, number: int, peer: str) -> bool:
        """Whether a mean from `peer` may take its place; False if one is there already. FrameError if it must not."""
        if peer != self.duty(number).mean_from:
            raise FrameError(f"{peer} has no business to send a mean here")
        held = self._parts[number]
        if held is None or held.contributors != self.duty(number).expected:
            raise FrameError(f"{peer} sent a mean of what this member has not yet passed on")
        return not self._final[number]

    def accept(self, number: int, part: Part) -> None:
        """The mean of a chunk is in its place: let the values be the mean. At the root, once `finish` lets it go.

        A mean that is there already is counted and left out.
        """
        if self._final[number]:
            self.duplicated |= part.contributors
            return
        assert part.successor is not None
        if self.share.fixed and self._agreed not in (None, part.successor):
            raise FrameError(f"means disagree on the epoch to use next: {self._agreed} and {part.successor}")
        self._agreed = max(self._agreed or 0, part.successor)
        self.overlapped = self.overlapped or part.overlaps
        self.lost |= self.role.everybody & ~part.contributors
        self._final[number] = 1
        self._made[number] = part
        chunk = self.layout.chunks[number]
        self._values(number).copy_(self._sums.placed(chunk.start, chunk.stop))

    def part(self, number: int) -> Part:
        """What a chunk's sum is made of so far; for when there is something."""
        part = self._parts[number]
        assert part is not None
        return part

    def own_values(self, number: int) -> Share | None:
        """This member's values of a chunk if they are all that its sum holds, and nothing was added up."""
        if self._summed[number]:
            return None
        return self.share._replace(values=self._values(number))

    def finals(self) -> list[Slice]:
        """The elements whose mean is there, in order, and whose updates it is of."""
        found: list[Slice] = []
        for number, chunk in enumerate(self.layout.chunks):
            part = self._made[number]
            if part is None:
                continue
            made = tuple(self.names(part.contributors)), part.weight
            if found and found[-1].stop == chunk.start and (found[-1].members, found[-1].weight) == made:
                found[-1] = replace(found[-1], stop=chunk.stop)
            else:
                found.append(Slice(chunk.start, chunk.stop, *made))
        return found

    def made_of(self, number: int) -> Part:
        """What the mean of a chunk is made of; for when it is there."""
        part = self._made[number]
        assert part is not None
        return part

    def means(self, start: int, stop: int) -> torch.Tensor:
        """A copy of the means of the elements [start, stop), all of them final."""
        chunks = (chunk for chunk in self.layout.chunks if chunk.start < stop and start < chunk.stop)
        return torch.cat([self._mean(chunk)[max(start - chunk.start, 0) : stop - chunk.start] for chunk in chunks])

    def _mean(self, chunk: Chunk) -> torch.Tensor:
        return self._sums.placed(chunk.start, chunk.stop)

    def awaited(self) -> dict[str, str]:
        """The peers that this member waits for, each with what it owes."""
        owed: dict[str, str] = {}
        for number, final in enumerate(self._final):
            if final:
                continue
            duty = self.duty(number)
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
        return [name for i, name in enumerate(self._members) if bitmap >> i & 1]

    def _values(self, number: int) -> torch.Tensor:
        chunk = self.layout.chunks[number]
        return self.share.values[chunk.start : chunk.stop]

    def _sum_own(self, number: int) -> None:
        self.view(number).copy_(self._values(number)).mul_(self.share.weight)
        self._summed[number] = 1

    def _scaled(self, values: torch.Tensor, scale: float) -> torch.Tensor:
        """A product that is rounded before it is added, so that the sum of two has the same bits either way round."""
        return values if scale == 1 else values.to(self._sums.summed) * scale

    def _sum(self, number: int, update: Update) -> Part | None:
        values, scale, part = update
        view, values = self.view(number), self._scaled(values, scale)
        if self._parts[number] is None:
            view.copy_(values)
        elif self._summed[number]:
            view.add_(values)
        elif self.share.weight == 1 and self._sums.wide:  # one pass instead of two
            torch.add(self._values(number), values, out=view)
        else:
            self._sum_own(number)
            view.add_(values)
        self._summed[number] = 1
        return self._join(number, part)

    def _next_in_order(self, number: int) -> str | None:
        """The child whose sum is to be added next; None while this member's own is not in yet."""
        held = self._parts[number]
        if held is None:
            return None
        left = (child for child, below in self.duty(number).partials_from.items() if not below & held.contributors)
        return next(left, None)

    def _add_early(self, number: int) -> Part | None:
        """Add what was kept aside and is next in order; the part to pass on if that completes the chunk."""
        early = self._early.get(number)
        complete = None
        while early and (child := self._next_in_order(number)) in early:
            assert child is not None
            complete = self._sum(number, early.pop(child))
        return complete

    def _join(self, number: int, part: Part) -> Part | None:
        held = self._parts[number]
        if held is not None:
            said = {held.successor, part.successor} - {None}
            successor = self._epoch if len(said) > 1 else next(iter(said), None)
            overlaps = held.overlaps or part.overlaps
            part = Part(held.contributors | part.contributors, held.weight + part.weight, successor, overlaps)
        self._parts[number] = part
        return part if part.contributors == self.duty(number).expected else None
