"""One round's sums at one member: what is to leave it, and what its means say. No I/O, no clock, no lock.

Each method that lets something come in returns what is to be sent because of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from msgspec.structs import replace

from testbed.protocol import MeanSlice
from testbed.sync.allreduce.chunk import ChunkReduction, LocalValues, Part, PartialSum
from testbed.sync.allreduce.chunk_codec import Kind, Sums
from testbed.sync.allreduce.role import Layout, RoundRole, TreeRole
from testbed.sync.codecs import Residual
from testbed.sync.errors import FrameError


class Contribution(NamedTuple):
    """This member's own: its values (flat), their weight, what says the epoch it is ready to go by next, and the newest
    one that all are known to be ready for.

    `fixed`: it always says the same, since another round may begin with the first mean of this one. This member
    `overlaps` rounds, or may from now on. With a `residual` chunks go through codecs.
    """

    values: torch.Tensor
    weight: float
    ready: Callable[[], int]
    confirmed: Callable[[], int]
    fixed: bool = False
    overlaps: bool = False
    residual: Residual | None = None


class OutgoingChunk(NamedTuple):
    """A chunk that is to leave this member: a partial sum, or the mean, made of `part`."""

    number: int
    kind: Kind
    peers: tuple[str, ...]
    part: Part


@dataclass(slots=True)
class RoundOutcome:
    """What the means that are there say of the round.

    `agreed` is the newest epoch that all contributors to one of the chunks were ready to go by next; None until a mean
    is there. When all are there it is the same at every member, and what all go by next. `lost` is a bitmap of members
    whose update a mean left out. `overlapped`: some member overlaps rounds; known with the first mean.
    """

    agreed: int | None = None
    lost: int = 0
    overlapped: bool = False


class Reduction:
    """The state of every chunk of one round, at a member with `role`, summed in `sums`; `in_order`: see ChunkReduction.

    `epoch` is what the round goes by, and the one to go by next unless all contributors to some chunk say another: each
    says so as that chunk is queued, and a root says what all are known to be ready for, so a member that comes to hold
    a plan in the midst of a round may still have it in the next.
    """

    def __init__(
        self, epoch: int, members: tuple[str, ...], role: RoundRole, layout: Layout, sums: Sums, in_order: bool
    ) -> None:
        self.layout = layout
        self.role = role
        self.outcome = RoundOutcome()
        self._epoch = epoch
        self._members = members
        self._contribution: Contribution | None = None
        self._chunks = [
            ChunkReduction(epoch, role.trees[chunk.tree], sums.view(chunk.start, chunk.stop), in_order)
            for chunk in layout.chunks
        ]
        self._unfinished = [len(key) for key in layout.keys]

    @property
    def contribution(self) -> Contribution:
        """This member's own; for when it has entered, and not left."""
        assert self._contribution is not None
        return self._contribution

    @property
    def duplicated(self) -> int:
        """A bitmap of members whose update came a second time."""
        bitmap = 0
        for chunk in self._chunks:
            bitmap |= chunk.duplicated
        return bitmap

    def chunk(self, number: int) -> ChunkReduction:
        """The state of a chunk."""
        return self._chunks[number]

    def tree_role(self, number: int) -> TreeRole:
        """This member's role in a chunk's tree."""
        return self.role.trees[self.layout.chunks[number].tree]

    def start(self, contribution: Contribution) -> None:
        """This member takes part; `add_local` then adds its values chunk by chunk."""
        self._contribution = contribution

    def finish(self) -> None:
        """The round is over here: let go of this member's values."""
        self._contribution = None
        for chunk in self._chunks:
            chunk.release()

    def add_local(self, number: int, residual: torch.Tensor | None = None) -> Sequence[OutgoingChunk]:
        """Let this member's values count for a chunk, and the `residual` of earlier rounds."""
        values, weight, overlaps = self.contribution.values, self.contribution.weight, self.contribution.overlaps
        chunk = self.layout.chunks[number]
        local = LocalValues(values[chunk.start : chunk.stop], weight, overlaps)
        return self._completed(number) if self._chunks[number].add_local(local, residual) else ()

    def add(self, number: int, peer: str, partial: PartialSum) -> Sequence[OutgoingChunk]:
        """Add a child's partial sum, which is only lent; FrameError when it has no business here."""
        return self._completed(number) if self._chunks[number].add(peer, partial) else ()

    def check_mean(self, number: int, peer: str) -> None:
        """FrameError unless a mean from `peer` may come now."""
        self._chunks[number].check_mean(peer)

    def accept(self, number: int, part: Part, mean: torch.Tensor) -> Sequence[OutgoingChunk]:
        """The mean of a chunk is there: let the values be the mean. At the root, once it is to be sent.

        A mean that is there already is counted and left out. FrameError when means disagree on the epoch to use next.
        """
        assert part.successor is not None
        agreed = self.outcome.agreed
        fresh = self._chunks[number].mean is None
        if fresh and self.contribution.fixed and agreed not in (None, part.successor):
            raise FrameError(
                f"means disagree on the epoch to use next: {agreed} and {part.successor}",
                rule="epochs-disagree",
                given=(agreed, part.successor),
            )
        if not self._chunks[number].accept(part, mean):
            return ()
        self.outcome.agreed = max(agreed or 0, part.successor)
        self.outcome.overlapped = self.outcome.overlapped or part.overlaps
        self.outcome.lost |= self.role.everybody & ~part.contributors
        return (OutgoingChunk(number, Kind.MEAN, self.tree_role(number).mean_to, part),)

    def sealed(self, part: Part) -> Part:
        """A part as it leaves this member, whose own word is in it now."""
        own = self._epoch if self._contribution is None else self._contribution.ready()
        return part._replace(successor=own if part.successor in (None, own) else self._epoch)

    def final_slices(self) -> list[MeanSlice]:
        """The elements whose mean is there, in order, and whose updates it is of."""
        found: list[MeanSlice] = []
        for its, chunk in zip(self._chunks, self.layout.chunks, strict=True):
            if its.mean is None:
                continue
            made = tuple(self.names(its.mean.contributors)), its.mean.weight
            if found and found[-1].stop == chunk.start and (found[-1].members, found[-1].weight) == made:
                found[-1] = replace(found[-1], stop=chunk.stop)
            else:
                found.append(MeanSlice(chunk.start, chunk.stop, *made))
        return found

    def missing(self) -> dict[str, str]:
        """The peers that this member waits for, each with what it owes."""
        owed: dict[str, str] = {}
        for chunk in self._chunks:
            owed |= chunk.missing()
        return owed

    def names(self, bitmap: int) -> list[str]:
        """The members of a bitmap."""
        return [name for i, name in enumerate(self._members) if bitmap >> i & 1]

    def _completed(self, number: int) -> Sequence[OutgoingChunk]:
        """What a sum that holds all that was to be added here is sent on as: as it is, or at the root as the mean.

        With keys, the means of one are sent together, once the last of them is there.
        """
        chunk, parent = self._chunks[number], self.tree_role(number).partials_to
        assert chunk.part is not None
        if parent is not None:
            return (OutgoingChunk(number, Kind.PARTIAL, (parent,), chunk.part),)
        chunk.finish()
        key = self.layout.chunks[number].key
        if key is None:
            return (self._mean(number),)
        self._unfinished[key] -= 1
        return () if self._unfinished[key] else [self._mean(each) for each in self.layout.keys[key]]

    def _mean(self, number: int) -> OutgoingChunk:
        """A mean as it leaves its root, whose contributors may all be ready for more than they said."""
        made = self._chunks[number].part
        assert made is not None
        part = self.sealed(made)
        assert part.successor is not None
        confirmed = self._epoch if self._contribution is None else self._contribution.confirmed()
        part = part._replace(successor=max(part.successor, confirmed))
        return OutgoingChunk(number, Kind.MEAN, self.tree_role(number).mean_to, part)
