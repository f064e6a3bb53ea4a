"""The sums of one round at one member, and the outcome of its means. No I/O, no clock, no lock.

Methods that add or accept a chunk return the chunks that must be sent as a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
    """This member's contribution to a round."""

    #: The values, flat.
    values: torch.Tensor
    weight: float
    #: Returns the epoch that this member is ready to use in the next round.
    ready: Callable[[], int]
    #: Returns the newest epoch that all members are known to be ready for.
    confirmed: Callable[[], int]
    #: True if each function always returns the same epoch, because the next round may begin with this round's first
    #: mean.
    fixed: bool = False
    #: True if this member overlaps rounds, or may from now on.
    overlaps: bool = False
    #: The residual of the tensor; with one, chunks are encoded by codecs.
    residual: Residual | None = None


def joined(slices: Iterable[MeanSlice]) -> tuple[MeanSlice, ...]:
    """Join adjacent slices with the same members and weight."""
    found: list[MeanSlice] = []
    for part in slices:
        last = found[-1] if found else None
        if last and (last.stop, last.members, last.weight) == (part.start, part.members, part.weight):
            found[-1] = replace(last, stop=part.stop)
        else:
            found.append(part)
    return tuple(found)


class OutgoingChunk(NamedTuple):
    """A chunk to send: a partial sum, or the mean."""

    #: The chunk's number in the layout.
    number: int
    kind: Kind
    #: The members to send it to.
    peers: tuple[str, ...]
    #: The updates that it holds.
    part: Part


@dataclass(slots=True)
class RoundOutcome:
    """The outcome of a round according to the means that this member has."""

    #: The newest epoch that all contributors to some chunk were ready to use next; None before the first mean. With all
    #: means it is the same at every member: the epoch of the next round.
    agreed: int | None = None
    #: A bitmap of the members whose update some mean left out.
    lost: int = 0
    #: True if some member overlaps rounds; known with the first mean.
    overlapped: bool = False


class Reduction:
    """The state of all chunks of one round at one member.

    The next round uses the same epoch unless all contributors to some chunk are ready for another one. A member
    announces its epoch when it queues a chunk, and a root announces the epoch that all members are known to be ready
    for. So a plan that a member receives during a round may already be used in the next round.

    Args:
        members: The plan's members, in the order of their bits.
        in_order: See ChunkReduction.
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
        """This member's contribution; only between `start` and `finish`."""
        assert self._contribution is not None
        return self._contribution

    @property
    def duplicated(self) -> int:
        """A bitmap of the members whose update came a second time."""
        bitmap = 0
        for chunk in self._chunks:
            bitmap |= chunk.duplicated
        return bitmap

    def chunk(self, number: int) -> ChunkReduction:
        """Return the state of the chunk with this number."""
        return self._chunks[number]

    def tree_role(self, number: int) -> TreeRole:
        """Return this member's role in the tree of the chunk with this number."""
        return self.role.trees[self.layout.chunks[number].tree]

    def start(self, contribution: Contribution) -> None:
        """Take this member's contribution; `add_local` then adds its values chunk by chunk."""
        self._contribution = contribution

    def finish(self) -> None:
        """Drop this member's values, because the round is over here."""
        self._contribution = None
        for chunk in self._chunks:
            chunk.release()

    def add_local(self, number: int, residual: torch.Tensor | None = None) -> Sequence[OutgoingChunk]:
        """Add this member's values of a chunk, and their residual of earlier rounds. Returns the chunks to send."""
        values, weight, overlaps = self.contribution.values, self.contribution.weight, self.contribution.overlaps
        chunk = self.layout.chunks[number]
        local = LocalValues(values[chunk.start : chunk.stop], weight, overlaps)
        return self._completed(number) if self._chunks[number].add_local(local, residual) else ()

    def add(self, number: int, peer: str, partial: PartialSum) -> Sequence[OutgoingChunk]:
        """Add a child's partial sum; see ChunkReduction.add. Returns the chunks to send."""
        return self._completed(number) if self._chunks[number].add(peer, partial) else ()

    def accept(self, number: int, part: Part, mean: torch.Tensor) -> Sequence[OutgoingChunk]:
        """Replace the values of a chunk by its mean, which is flat. The root calls it when it sends the mean.

        A second mean of the same chunk is ignored and counted.

        Returns:
            The chunk to send to the children, unless the mean was ignored.

        Raises:
            FrameError: The round's means disagree on the epoch to use next.
        """
        assert part.successor is not None
        agreed = self.outcome.agreed
        first = self._chunks[number].mean is None
        if first and self.contribution.fixed and agreed not in (None, part.successor):
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
        """Return a part that this member sends, with the epoch that this member is ready to use next."""
        own = self._epoch if self._contribution is None else self._contribution.ready()
        return part._replace(successor=own if part.successor in (None, own) else self._epoch)

    def final_slices(self) -> tuple[MeanSlice, ...]:
        """Return the slices whose mean is final here, in order, each with the members whose updates it holds."""
        return joined(
            MeanSlice(chunk.start, chunk.stop, tuple(self.names(its.mean.contributors)), its.mean.weight)
            for its, chunk in zip(self._chunks, self.layout.chunks, strict=True)
            if its.mean is not None
        )

    def missing(self) -> dict[str, str]:
        """Return the peers that this member waits for, each with the missing data in words."""
        missing: dict[str, str] = {}
        for chunk in self._chunks:
            missing |= chunk.missing()
        return missing

    def names(self, bitmap: int) -> list[str]:
        """Return the members of a bitmap."""
        return [name for i, name in enumerate(self._members) if bitmap >> i & 1]

    def _completed(self, number: int) -> Sequence[OutgoingChunk]:
        """Return the chunks to send when a sum is complete: the partial sum, or at the root the mean.

        The means of a key are sent together, after its last one.
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
        """Return a mean to send from its root. By now all members may be ready for a newer epoch than its sum says."""
        summed = self._chunks[number].part
        assert summed is not None
        part = self.sealed(summed)
        assert part.successor is not None
        confirmed = self._epoch if self._contribution is None else self._contribution.confirmed()
        part = part._replace(successor=max(part.successor, confirmed))
        return OutgoingChunk(number, Kind.MEAN, self.tree_role(number).mean_to, part)
