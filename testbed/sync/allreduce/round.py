"""A round that is on at one member: what comes in goes through its reduction, and what that says is sent.

values --add_local--> sum --(all below me are in)--> parent ... root: mean --> children ... --accept--> values
                       ^ children's partial sums                                   `--> my children

A round that is over.
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
from testbed.sync.allreduce.sending import Departures, SendPacing
from testbed.sync.errors import FrameError
from testbed.sync.transport import Frame, Received


@dataclass(slots=True)
class Tally:
    """What a round moved at this member, and what it cost.

    `waited` holds for how long after the round's begin each peer's last chunk came; `receive_s` counts the time from
    a chunk's head to its end, `add_s` that in additions, `send_s` that in sending, over all threads. In seconds.
    """

    sent_bytes: int = 0
    received_bytes: int = 0
    receive_s: float = 0.0
    add_s: float = 0.0
    send_s: float = 0.0
    waited: Mapping[str, float] = field(default_factory=dict)


class RoundMeter:
    """Counts a round's tally at a member. No lock of its own; times are monotonic."""

    def __init__(self) -> None:
        self._tally = Tally()
        self._arrived: dict[str, float] = {}

    def received(self, source: str, count: int, seconds: float) -> float:
        """So many bytes came from a member within so long; now."""
        now = time.monotonic()
        self._tally.received_bytes += count
        self._tally.receive_s += seconds
        self._arrived[source] = now
        return now

    def added(self, since: float) -> None:
        """The time since then went into additions."""
        self._tally.add_s += time.monotonic() - since

    def tally(self, began: float, sent_bytes: int, send_s: float) -> Tally:
        """All of it, for a member that began the round at that time and sent that much."""
        waited = {peer: max(at - began, 0.0) for peer, at in self._arrived.items()}
        return replace(self._tally, sent_bytes=sent_bytes, send_s=send_s, waited=waited)


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What `allreduce` did: `tensor` holds the mean. Times in seconds since 1970.

    `whole` says that the mean is all members'; a plan with groups has rounds in which each group has its own.
    `slices` say whose updates the mean is of: one, unless a member was lost in the middle of the round. `lost` and
    `duplicated` count members whose update a mean left out, or that came a second time.
    """

    tensor: torch.Tensor
    round: int
    epoch: int
    whole: bool
    started_s: float
    finished_s: float
    lost: int
    duplicated: int
    slices: tuple[MeanSlice, ...]
    tally: Tally


class Round:
    """Round `number`, which this member is in, or which a peer began before it. Every thread that receives calls
    `take`, one `enter`.

    A round is over when the mean of each chunk is there and was queued for all whom this member passes it on to; not
    when the last mean is there: else a frame of the next round could come to stand before it. `on_step` is called
    then, and when the first mean has told the epoch to go by next.
    """

    def __init__(
        self,
        number: int,
        plan: Plan,
        reduction: Reduction,
        sums: Sums,
        pacing: SendPacing,
        departures: Departures,
        on_step: Callable[[], None],
    ) -> None:
        self.number = number
        self.plan = plan
        self.reduction = reduction
        self.pacing = pacing
        self.departures = departures
        self._sums = sums
        self._on_step = on_step
        self._encoder = Encoder(sums, None)
        self._meter = RoundMeter()
        self._guard = threading.Lock()
        self._frozen = False
        self._unsettled = len(self.reduction.layout.chunks)
        departures.on_left = self._advance

    @property
    def epoch(self) -> int:
        """The epoch of the plan that this round goes by."""
        return self.plan.epoch

    @property
    def among_all(self) -> bool:
        """Whether all of the plan's members take part."""
        return self.plan.among_all(self.number)

    @property
    def over(self) -> bool:
        """Whether every chunk is final here and on its way to all whom this member passes it on to."""
        return not self._unsettled

    @property
    def shape(self) -> tuple[int, torch.dtype]:
        """The tensor's number of elements and their type."""
        return self._sums.elements, self._sums.dtype

    def __str__(self) -> str:
        return f"round {self.number}, epoch {self.epoch}"

    def missing(self) -> dict[str, str]:
        """The peers that this member waits for, each with what it owes."""
        with self._guard:
            return self.reduction.missing()

    def tally(self, began: float, send_s: float) -> Tally:
        """What it has moved and cost so far; `began` is when this member did (monotonic)."""
        with self._guard:
            return self._meter.tally(began, self.departures.sent_bytes, send_s)

    def freeze(self) -> list[MeanSlice]:
        """Let nothing more become final here; the elements that are."""
        with self._guard:
            self._frozen = True
            return self.reduction.finals()

    def leave(self) -> None:
        """The round is over: the values are their owner's again."""
        self._encoder = Encoder(self._sums, None)
        self.reduction.leave()

    def enter(self, contribution: Contribution) -> None:
        """Have this member's values count, the front of every slice first; they are replaced by the mean."""
        self._encoder = Encoder(self._sums, contribution.residual)
        with self._guard:
            self.reduction.enter(contribution)
        for number in self.reduction.layout.front_first:
            with self._guard:
                began = time.monotonic()
                owed = self._encoder.owed(self.reduction.layout.chunks[number])
                sends = self.reduction.add_local(number, owed)
                self._meter.added(began)
            if sends:
                self._send(sends)

    def take(self, header: ChunkHeader, received: Received) -> None:
        """Take a chunk that came; FrameError when it has no business here."""
        if (header.epoch, header.elements, element_type(header.dtype)) != (self.epoch, *self.shape):
            raise FrameError(f"{self}: a frame of epoch {header.epoch} with {header.elements} elements")
        number = self.reduction.layout.find(header.tree, header.offset)
        elements = len(self.reduction.layout.chunks[number])
        if not fits(header.dtype, elements, len(received.payload)):
            raise FrameError(f"{self}: a chunk of {elements} elements in {len(received.payload)} bytes")
        values = decode(header.dtype, received.payload, elements)
        part = Part(header.contributors, header.weight, header.successor, header.overlaps)
        if header.kind is Kind.PARTIAL:
            self._take_partial(number, PartialSum(values, header.scale, part), received)
        else:
            self._take_mean(number, header, part, values, received)

    def _take_partial(self, number: int, partial: PartialSum, received: Received) -> None:
        with self._guard:
            began = self._meter.received(received.source, received.bytes, received.seconds)
            sends = self.reduction.add(number, received.source, partial)
            self._meter.added(began)
        if sends:
            self._send(sends)

    def _take_mean(
        self, number: int, header: ChunkHeader, part: Part, values: torch.Tensor, received: Received
    ) -> None:
        """Take a mean and pass it on. It is the same bytes all the way down, summed up once."""
        with self._guard:
            self.reduction.check_mean(number, received.source)
            began = self._meter.received(received.source, received.bytes, received.seconds)
            if self._frozen:
                return
            sends, first = self._accept(number, part, values)
            kept = self._kept(number, header, values, received.payload) if sends and sends[0].peers else None
            self._meter.added(began)
        if first:
            self._on_step()
        for send in sends:
            frame = received.frame._replace(table=0, route=0, left=0)
            self._broadcast(send, frame, memoryview(b"") if kept is None else kept)

    def _kept(self, number: int, header: ChunkHeader, values: torch.Tensor, data: memoryview) -> memoryview:
        """A mean's bytes, in room that lasts until they were sent on."""
        if header.dtype not in DTYPES:
            return memoryview(bytearray(data))
        chunk = self.reduction.layout.chunks[number]
        return self._sums.keep(chunk.start, chunk.stop, values)

    def _accept(self, number: int, part: Part, mean: torch.Tensor) -> tuple[Sequence[OutgoingChunk], bool]:
        """A mean is there: what is to be sent, and whether it is the first, which tells the epoch to go by next."""
        first = self.reduction.outcome.agreed is None
        sends = self.reduction.accept(number, part, mean)
        self.pacing.settle(number, time.monotonic())
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
        """Send `peer` the partial sums whose turn it is."""
        while True:
            with self._guard:
                paced = self.pacing.release(peer, lambda: self.departures.crowded(peer), time.monotonic())
            if paced is None:
                return
            chunk, state = self.reduction.layout.chunks[paced.number], self.reduction.chunk(paced.number)
            codec = self.reduction.tree_role(paced.number).partial_codec
            encoded = self._encoder.encode(chunk, Kind.PARTIAL, paced.part, codec, state.unsummed)
            frame = self.departures.frame(chunk, Kind.PARTIAL, self.reduction.sealed(paced.part), encoded)
            self.departures.put((peer,), chunk, Kind.PARTIAL, frame, encoded.data)

    def _release(self, send: OutgoingChunk) -> None:
        """At the root: a mean is to be broadcast."""
        chunk, codec = self.reduction.layout.chunks[send.number], self.reduction.tree_role(send.number).mean_codec
        encoded = self._encoder.encode(chunk, Kind.MEAN, send.part, codec, None)
        frame = self.departures.frame(chunk, Kind.MEAN, send.part, encoded)
        with self._guard:
            if self._frozen:
                return
            _, first = self._accept(send.number, send.part, self._sums.placed(chunk.start, chunk.stop))
        if first:
            self._on_step()
        self._broadcast(send, frame, encoded.data)

    def _broadcast(self, send: OutgoingChunk, frame: Frame, data: memoryview) -> None:
        if send.peers:
            self.departures.put(send.peers, self.reduction.layout.chunks[send.number], Kind.MEAN, frame, data)
        with self._guard:
            self._unsettled -= 1
            over = not self._unsettled
            waiting = self.pacing.peers
        for peer in waiting:
            self._advance(peer)
        if over:
            self._on_step()
