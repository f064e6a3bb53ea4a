"""A round in progress at one member: it passes arriving chunks to its reduction, and sends the chunks that result.

values --add_local--> sum --(complete)--> parent ... root: mean ... --accept--> values
                       ^ children's partial sums                        `--> children
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from testbed.plan import Plan
from testbed.protocol import MeanSlice
from testbed.sync.allreduce.chunk import Part, PartialSum
from testbed.sync.allreduce.chunk_codec import DTYPES, ChunkHeader, Encoder, Kind, Sums, decode, element_type, fits
from testbed.sync.allreduce.reduction import Contribution, OutgoingChunk, Reduction
from testbed.sync.allreduce.sending import OutgoingFrames, SendPacing
from testbed.sync.errors import FrameError, SyncError
from testbed.sync.transport import Frame, Received


@dataclass(slots=True)
class Tally:
    """The traffic of a round at this member, and the seconds spent on it, summed over all threads but in `waited`."""

    sent_bytes: int = 0
    received_bytes: int = 0
    #: The time from each chunk's head to its end.
    receive_s: float = 0.0
    #: The time of additions.
    add_s: float = 0.0
    #: The time that connections spent in sending frames, also those of other rounds, while this round ran.
    send_s: float = 0.0
    #: The time from the round's begin to the arrival of each peer's last chunk, by peer.
    waited: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoundResult:
    """The result of one `allreduce`. Times are in seconds since 1970."""

    #: Holds the mean.
    tensor: torch.Tensor
    round: int
    epoch: int
    #: True if the mean is over all members, not over this member's group alone.
    whole: bool
    started_s: float
    finished_s: float
    #: The number of members whose update some mean left out.
    lost: int
    #: The number of members whose update arrived a second time.
    duplicated: int
    #: The members of each part of the mean: one part, unless a member was lost during the round.
    slices: tuple[MeanSlice, ...]
    tally: Tally


class Round:
    """A round that this member is in, or that a peer began before it.

    Every receiving thread calls `take`; one thread calls `start`. A round is over when each chunk's mean is final here
    and queued for this member's children. The arrival of the last mean is not enough, because a frame of the next round
    could then be queued before that mean.

    Args:
        on_step: Called when the first mean has told the next round's epoch, and when the round is over.
    """

    def __init__(
        self,
        number: int,
        plan: Plan,
        reduction: Reduction,
        sums: Sums,
        pacing: SendPacing,
        outgoing: OutgoingFrames,
        on_step: Callable[[], None],
    ) -> None:
        self.number = number
        self.plan = plan
        self.reduction = reduction
        self.pacing = pacing
        self.outgoing = outgoing
        self._sums = sums
        self._on_step = on_step
        self._encoder = Encoder(sums, None)
        self._tally = Tally()
        self._arrived: dict[str, float] = {}  # when each peer's last chunk came (monotonic)
        self._guard = threading.Lock()
        self._frozen = False
        self._unfinished = len(self.reduction.layout.chunks)

    @property
    def epoch(self) -> int:
        """The epoch of the plan that this round uses."""
        return self.plan.epoch

    @property
    def among_all(self) -> bool:
        """True if all of the plan's members take part."""
        return self.plan.among_all(self.number)

    @property
    def over(self) -> bool:
        """True once each chunk's mean is final here and queued for this member's children."""
        return not self._unfinished

    @property
    def shape(self) -> tuple[int, torch.dtype]:
        """The tensor's number of elements and their type."""
        return self._sums.elements, self._sums.dtype

    def __str__(self) -> str:
        return f"round {self.number}, epoch {self.epoch}"

    def error(self, what: str, rule: str | None = None, member: str | None = None) -> SyncError:
        """Return an error of this round, which names it."""
        return SyncError(f"{self}: {what}", rule=rule, member=member, round=self.number, epoch=self.epoch)

    def missing(self) -> dict[str, str]:
        """Return the peers that this member waits for, each with the missing data in words."""
        with self._guard:
            return self.reduction.missing()

    def tally(self, began: float, send_s: float) -> Tally:
        """Return the traffic and times so far, for a member that began at `began` (monotonic)."""
        with self._guard:
            waited = {peer: max(at - began, 0.0) for peer, at in self._arrived.items()}
            return replace(self._tally, sent_bytes=self.outgoing.sent_bytes, send_s=send_s, waited=waited)

    def freeze(self) -> tuple[MeanSlice, ...]:
        """Accept no more means. Returns the slices that are final here."""
        with self._guard:
            self._frozen = True
            return self.reduction.final_slices()

    def finish(self) -> None:
        """Release this member's values: the round is over here."""
        self._encoder = Encoder(self._sums, None)
        self.reduction.finish()

    def start(self, contribution: Contribution) -> None:
        """Add this member's values, the front of every slice first. The means replace them."""
        self._encoder = Encoder(self._sums, contribution.residual)
        with self._guard:
            self.reduction.start(contribution)
        for number in self.reduction.layout.front_first:
            with self._guard:
                began = time.monotonic()
                residual = self._encoder.take_residual(self.reduction.layout.chunks[number])
                sends = self.reduction.add_local(number, residual)
                self._tally.add_s += time.monotonic() - began
            if sends:
                self._send(sends)

    def take(self, header: ChunkHeader, received: Received) -> None:
        """Take a chunk that arrived.

        Raises:
            FrameError: No correct member sends this chunk.
        """
        if (header.epoch, header.elements, element_type(header.dtype)) != (self.epoch, *self.shape):
            raise FrameError(
                f"{self}: a frame is of epoch {header.epoch} and a tensor of {header.elements} elements of "
                f"{element_type(header.dtype)}, and the round's tensor has {self.shape[0]} of {self.shape[1]}"
            )
        number = self.reduction.layout.find(header.tree, header.offset)
        elements = len(self.reduction.layout.chunks[number])
        if not fits(header.dtype, elements, len(received.payload)):
            size = len(received.payload)
            raise FrameError(f"{self}: a payload of {size} bytes is too short or too long for {elements} elements")
        values = decode(header.dtype, received.payload, elements)
        part = Part(header.contributors, header.weight, header.successor, header.overlaps)
        if header.kind is Kind.PARTIAL:
            self._take_partial(number, PartialSum(values, header.scale, part), received)
        else:
            self._take_mean(number, header, part, values, received)

    def _take_partial(self, number: int, partial: PartialSum, received: Received) -> None:
        with self._guard:
            began = self._count(received)
            sends = self.reduction.add(number, received.source, partial)
            self._tally.add_s += time.monotonic() - began
        if sends:
            self._send(sends)

    def _take_mean(
        self, number: int, header: ChunkHeader, part: Part, values: torch.Tensor, received: Received
    ) -> None:
        """Take a mean and pass it on: the same bytes all the way down the tree, with the checksum of their sender."""
        with self._guard:
            self.reduction.chunk(number).check_mean(received.source)
            began = self._count(received)
            if self._frozen:
                return
            sends, first = self._accept(number, part, values)
            kept = self._kept(number, header, values, received.payload) if sends and sends[0].peers else None
            self._tally.add_s += time.monotonic() - began
        if first:
            self._on_step()
        for send in sends:
            frame = received.frame._replace(table=0, route=0, left=0)
            self._broadcast(send, frame, memoryview(b"") if kept is None else kept)

    def _count(self, received: Received) -> float:
        """Count a chunk that arrived. Returns the current time (monotonic)."""
        now = time.monotonic()
        self._tally.received_bytes += received.bytes
        self._tally.receive_s += received.seconds
        self._arrived[received.source] = now
        return now

    def _kept(self, number: int, header: ChunkHeader, values: torch.Tensor, data: memoryview) -> memoryview:
        """Return a mean's bytes in memory that lasts until they are sent on."""
        if header.dtype not in DTYPES:
            return memoryview(bytearray(data))
        chunk = self.reduction.layout.chunks[number]
        return self._sums.store(chunk.start, chunk.stop, values)

    def _accept(self, number: int, part: Part, mean: torch.Tensor) -> tuple[Sequence[OutgoingChunk], bool]:
        """Accept a mean. Returns the chunks to send, and whether it is the first mean, which tells the next epoch."""
        first = self.reduction.outcome.agreed is None
        sends = self.reduction.accept(number, part, mean)
        self.pacing.finalize(number, time.monotonic())
        return sends, first

    def _send(self, sends: Iterable[OutgoingChunk]) -> None:
        for send in sends:
            if send.kind is Kind.MEAN:
                self._release(send)
                continue
            (parent,) = send.peers
            with self._guard:
                self.pacing.hold(parent, send.number, send.part)
            self._advance(parent)

    def _advance(self, peer: str) -> None:
        """Send to `peer` the partial sums that send pacing releases."""
        while True:
            with self._guard:
                paced = self.pacing.release(peer, lambda: self.outgoing.crowded(peer), time.monotonic())
            if paced is None:
                return
            chunk, state = self.reduction.layout.chunks[paced.number], self.reduction.chunk(paced.number)
            codec = self.reduction.tree_role(paced.number).partial_codec
            encoded = self._encoder.encode(chunk, Kind.PARTIAL, paced.part, codec, state.unsummed)
            frame = self.outgoing.frame(chunk, Kind.PARTIAL, self.reduction.sealed(paced.part), encoded)
            self.outgoing.put((peer,), chunk, Kind.PARTIAL, frame, encoded.data, self._advance)

    def _release(self, send: OutgoingChunk) -> None:
        """Broadcast a mean that was made here, at the root."""
        chunk, codec = self.reduction.layout.chunks[send.number], self.reduction.tree_role(send.number).mean_codec
        encoded = self._encoder.encode(chunk, Kind.MEAN, send.part, codec, None)
        frame = self.outgoing.frame(chunk, Kind.MEAN, send.part, encoded)
        with self._guard:
            if self._frozen:
                return
            _, first = self._accept(send.number, send.part, self._sums.result(chunk.start, chunk.stop))
        if first:
            self._on_step()
        self._broadcast(send, frame, encoded.data)

    def _broadcast(self, send: OutgoingChunk, frame: Frame, data: memoryview) -> None:
        if send.peers:
            chunk = self.reduction.layout.chunks[send.number]
            self.outgoing.put(send.peers, chunk, Kind.MEAN, frame, data, self._advance)
        with self._guard:
            self._unfinished -= 1
            over = not self._unfinished
            waiting = self.pacing.peers
        for peer in waiting:
            self._advance(peer)
        if over:
            self._on_step()
