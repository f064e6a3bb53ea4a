"""A round at one member: the way of each chunk through it.

values --own--> sum --(all below me are in)--> parent ... root: mean --> children ... --accept--> values
                 ^ children's partial sums                                   `--> my children
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch

from testbed.plan import Plan
from testbed.protocol import Slice
from testbed.sync.allreduce import payload
from testbed.sync.allreduce.layout import Layout
from testbed.sync.allreduce.pacing import Ahead
from testbed.sync.allreduce.reduction import Part, Reduction, Share, Update
from testbed.sync.allreduce.role import Role
from testbed.sync.buffers import CODES, DTYPES, Sums, bytes_of
from testbed.sync.codecs import PLAIN, Codec, Residual
from testbed.sync.errors import FrameError
from testbed.sync.transport.frame import Frame, Kind
from testbed.sync.transport.outbox import Outbox
from testbed.sync.transport.send_queue import unchanged


@dataclass(slots=True)
class Tally:
    """What a round moved at this member, and what it cost.

    `arrived` holds the monotonic time of each peer's last chunk; `receive_s` counts the time from a chunk's head to
    its end, `add_s` that in additions; both over all threads.
    """

    sent_bytes: int = 0
    received_bytes: int = 0
    receive_s: float = 0.0
    add_s: float = 0.0
    arrived: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Delivery:
    """What becomes of a frame's elements: received `into` where they belong, or, where that is None, into any room,
    which is then only lent to `take`. `take` is called once the checksum held."""

    into: memoryview | None
    take: Callable[[memoryview], None]


class Round:
    """A round that is on, or that a peer began before us. Every thread that receives calls `deliver`, one `enter`.

    A round is over when the mean of each chunk is there and was queued for all whom this member passes it on to; not
    when the last mean is there: else a frame of the next round could come to stand before it. `on_step` is called
    then, and when the first mean has told the epoch to go by next. `steady` says that all whom frames may pass have
    begun the round before this one, and have had a tensor of this shape: they take its frames at once, so those may
    go by auxiliary routes.
    """

    def __init__(
        self,
        number: int,
        plan: Plan,
        role: Role,
        layout: Layout,
        sums: Sums,
        outbox: Outbox,
        on_step: Callable[[], None],
        steady: bool,
        in_order: bool,
        returns: float = 1.0,
    ) -> None:
        self.number = number
        self.plan = plan
        self.steady = steady
        self.tally = Tally()
        self.reduction = Reduction(plan.epoch, plan.members, role, layout, sums, in_order)
        self._sums = sums
        self._layout = layout
        self._outbox = outbox
        self._on_step = on_step
        self._residual: Residual | None = None
        self._frozen = False
        self._guard = threading.Lock()
        self._ahead = Ahead(layout, role.party, returns)
        self._unsettled = len(layout.chunks)
        self._unsent = 0
        self._all_sent = threading.Condition(self._guard)

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
    def sent(self) -> bool:
        """Whether nothing of this round is queued now."""
        return not self._unsent

    @property
    def shape(self) -> tuple[int, torch.dtype]:
        """The tensor's number of elements and their type."""
        return self._sums.elements, self._sums.dtype

    def __str__(self) -> str:
        return f"round {self.number}, epoch {self.epoch}"

    @property
    def returns(self) -> float:
        """The part of this round that a mean took to come back (see Ahead)."""
        return self._ahead.returns

    def awaited(self) -> dict[str, str]:
        """The peers that this member waits for, each with what it owes."""
        with self._guard:
            return self.reduction.awaited()

    def await_sent(self, timeout_s: float) -> bool:
        """Wait until nothing of this round is queued any more; False when `timeout_s` have passed before."""
        with self._all_sent:
            return self._all_sent.wait_for(lambda: not self._unsent, max(timeout_s, 0))

    def freeze(self) -> list[Slice]:
        """Let nothing more become final here; the elements that are."""
        with self._guard:
            self._frozen = True
            return self.reduction.finals()

    def leave(self) -> None:
        """The round is over: the values are their owner's again."""
        self._residual = None
        self.reduction.leave()

    def enter(self, share: Share, residual: Residual | None) -> None:
        """Have this member's values count, the front of every slice first; they are replaced by the mean.

        With a `residual` chunks are encoded as the plan says.
        """
        self._residual = residual
        with self._guard:
            self.reduction.enter(share)
        for number in self._layout.front_first:
            chunk = self._layout.chunks[number]
            with self._guard:
                began = time.monotonic()
                owed = residual.pay(chunk.start, chunk.stop) if residual is not None else None
                complete = self.reduction.own(number, owed)
                self.tally.add_s += time.monotonic() - began
            if complete is not None:
                self._pass_on(number, complete)

    def deliver(self, peer: str, head: Frame) -> Delivery:
        """Where a frame that began at `peer` goes; FrameError when it has no business here."""
        if (head.epoch, head.elements, payload.element_type(head.dtype)) != (self.epoch, *self.shape):
            raise FrameError(f"{self}: a frame of epoch {head.epoch} with {head.elements} elements")
        number = self._layout.find(head.tree, head.offset)
        chunk = self._layout.chunks[number]
        if not payload.fits(head.dtype, len(chunk), head.length):
            raise FrameError(f"{self}: a chunk of {len(chunk)} elements in {head.length} bytes")
        began = time.monotonic()
        if head.kind is Kind.PARTIAL:
            return Delivery(None, lambda data: self._add(number, peer, head, data, began))
        with self._guard:
            place = self.reduction.land(number, peer) and head.dtype in DTYPES
        into = self._sums.place(chunk.start, chunk.stop) if place else None
        return Delivery(into, lambda data: self._accept(number, peer, head, data, began))

    def _add(self, number: int, peer: str, head: Frame, data: memoryview, began: float) -> None:
        values = payload.decode(head.dtype, data, len(self._layout.chunks[number]))
        part = Part(head.contributors, head.weight, head.successor, head.overlaps)
        with self._guard:
            arrived = self._arrived(peer, len(data), began)
            complete = self.reduction.add(number, peer, Update(values, head.scale, part))
            self.tally.add_s += time.monotonic() - arrived
        if complete is not None:
            self._pass_on(number, complete)

    def _accept(self, number: int, peer: str, head: Frame, data: memoryview, began: float) -> None:
        """Take a mean and pass it on. It is the same bytes all the way down, summed up once."""
        chunk = self._layout.chunks[number]
        plain = head.dtype in DTYPES
        part = Part(head.contributors, head.weight, head.successor, head.overlaps)
        with self._guard:
            arrived = self._arrived(peer, len(data), began)
            if self._frozen:
                return
            fresh = self.reduction.land(number, peer)
            if fresh and not plain:
                self.reduction.view(number).copy_(payload.decode(head.dtype, data, len(chunk)))
            first = self._accepted(number, part)
            self.tally.add_s += time.monotonic() - arrived
        if first:
            self._on_step()
        if fresh:
            encoded = not plain and bool(self.reduction.duty(number).mean_to)
            kept = memoryview(bytearray(data)) if encoded else self._sums.place(chunk.start, chunk.stop)
            self._broadcast(number, head._replace(route=0, left=0), kept)

    def _accepted(self, number: int, part: Part) -> bool:
        """A mean is in its place; whether it is the first, which tells the epoch to go by next."""
        first = self.reduction.agreed is None
        self.reduction.accept(number, part)
        self._ahead.settle(number, time.monotonic())
        return first

    def _arrived(self, peer: str, length: int, began: float) -> float:
        now = time.monotonic()
        self.tally.received_bytes += self._outbox.head_bytes + length
        self.tally.receive_s += now - began
        self.tally.arrived[peer] = now
        return now

    def _pass_on(self, number: int, part: Part) -> None:
        """Pass on a chunk that holds all that was to be added here: up as a partial sum, or down as the mean."""
        duty = self.reduction.duty(number)
        if duty.partials_to is not None:
            with self._guard:
                self._ahead.hold(duty.partials_to, number, part)
            self._advance(duty.partials_to)
            return
        with self._guard:
            began = time.monotonic()
            finished = self.reduction.finish(number)
            self.tally.add_s += time.monotonic() - began
        for each in finished:
            self._release(each, self.reduction.concluded(self.reduction.part(each)), duty.mean_codec)

    def _advance(self, peer: str) -> None:
        """Send `peer` the partial sums whose turn it is."""
        while True:
            with self._guard:
                held = self._ahead.release(peer, lambda: self._outbox.crowded(peer), time.monotonic())
            if held is None:
                return
            codec, part = self.reduction.duty(held.number).partial_codec, held.part
            frame, data = self._packed(held.number, Kind.PARTIAL, self.reduction.sealed(part), codec)
            self._send(held.number, peer, frame, data, partial(self._sealed, part))

    def _release(self, number: int, part: Part, codec: Codec) -> None:
        """At the root: a mean is to be broadcast. It goes to several, so its checksum is made here."""
        frame, data = self._packed(number, Kind.MEAN, part, codec)
        frame = frame.sealed(data)
        with self._guard:
            if self._frozen:
                return
            first = self._accepted(number, part)
        if first:
            self._on_step()
        self._broadcast(number, frame, data)

    def _broadcast(self, number: int, frame: Frame, data: memoryview) -> None:
        for peer in self.reduction.duty(number).mean_to:
            self._send(number, peer, frame, data)
        with self._guard:
            self._unsettled -= 1
            over = not self._unsettled
            waiting = self._ahead.peers
        for peer in waiting:
            self._advance(peer)
        if over:
            self._on_step()

    def _sealed(self, part: Part, frame: Frame) -> Frame:
        """A partial sum's frame as it leaves: with the epoch that this member is ready for by then."""
        successor = self.reduction.sealed(part).successor
        assert successor is not None
        return frame._replace(successor=successor)

    def _send(
        self,
        number: int,
        peer: str,
        frame: Frame,
        data: memoryview,
        sealed: Callable[[Frame], Frame] = unchanged,
    ) -> None:
        chunk = self._layout.chunks[number]
        with self._guard:
            self.tally.sent_bytes += self._outbox.head_bytes + len(data)
            self._unsent += 1
        priority = (self.number, chunk.front, int(frame.kind is Kind.PARTIAL), chunk.tree)
        self._outbox.put(peer, priority, frame, data, lambda: self._sent(peer), self.steady, sealed)

    def _sent(self, peer: str) -> None:
        with self._guard:
            self._unsent -= 1
            if not self._unsent:
                self._all_sent.notify_all()
        self._advance(peer)

    def _packed(self, number: int, kind: Kind, part: Part, codec: Codec) -> tuple[Frame, memoryview]:
        chunk = self._layout.chunks[number]
        code, data, scale = self._payload(number, kind, part, codec)
        assert part.successor is not None
        frame = Frame(
            kind=kind,
            dtype=code,
            tree=chunk.tree,
            epoch=self.epoch,
            successor=part.successor,
            round=self.number,
            elements=self._layout.elements,
            offset=chunk.start,
            length=len(data),
            weight=part.weight,
            contributors=part.contributors,
            scale=scale,
            overlaps=part.overlaps,
        )
        return frame, data

    def _payload(self, number: int, kind: Kind, part: Part, codec: Codec) -> tuple[int, memoryview, float]:
        """A chunk as it travels: its code, its bytes, and what they are to be multiplied with."""
        chunk = self._layout.chunks[number]
        if self._residual is not None and codec.size(len(chunk)) < PLAIN.size(len(chunk)):
            return codec.code, self._encoded(number, kind, part, codec), 1.0
        code = CODES[self._sums.dtype]
        own = self.reduction.own_values(number)
        if own is not None:
            return code, bytes_of(own.values), own.weight
        scale = 1.0
        if kind is Kind.PARTIAL and not self._sums.wide and part.weight > 0:
            # The mean of those below: their sum could be beyond float16, which ends at 65,504.
            scale = part.weight
            self.reduction.view(number).div_(scale)
        self._sums.settle(chunk.start, chunk.stop)
        return code, self._sums.place(chunk.start, chunk.stop), scale

    def _encoded(self, number: int, kind: Kind, part: Part, codec: Codec) -> memoryview:
        """What a codec makes of a chunk, which becomes what peers will decode."""
        assert self._residual is not None
        view = self.reduction.view(number)
        data, decoded = payload.encode(codec, view)
        scale = part.weight if kind is Kind.MEAN else 1.0  # residuals are in units of sums
        self._residual.owe(self._layout.chunks[number].start, (view - decoded).mul_(scale))
        view.copy_(decoded)
        return data
