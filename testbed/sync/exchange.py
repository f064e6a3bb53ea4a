"""All-reduce over plans: rounds, the plans they go by, and the way of each chunk through this member.

    values --own--> sum --(all below me are in)--> parent ... root: mean --> children ... --accept--> values
                     ^ children's partial sums                                   `--> my children

The caller's thread adds this member's values; a thread per connection adds what peers send, and forwards. A peer
may be one round ahead. Its chunks are then added to the next round's sums before this member has even begun it,
if the tensor has the shape it had; if not, the connection waits. Waiting is safe: what a peer owes the round that
is on was queued before what it sends for the next.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from testbed.plan import Plan, PlanError
from testbed.protocol import PeerSample
from testbed.sync import payload
from testbed.sync.buffers import CODES, DTYPES, Alternating, Buffer
from testbed.sync.codecs import PLAIN, Residual
from testbed.sync.duty import Duty, duties
from testbed.sync.errors import FrameError, SyncError
from testbed.sync.frame import Frame, FrameFormat, Kind, greeting
from testbed.sync.layout import Layout
from testbed.sync.reduction import Part, Reduction
from testbed.sync.sender import Sender


@dataclass(slots=True)
class Tally:
    """What a round moved at this member. `arrived` holds the monotonic time of each peer's last chunk."""

    sent_bytes: int = 0
    received_bytes: int = 0
    arrived: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Round:
    """A round that is on, or that a peer began before us. `guard` protects all of it.

    `unsettled` counts the chunks whose mean this member has not yet got and queued for all it forwards to. A round
    ends at 0, not when the last mean is there: else a frame of the next round could come to stand before it.
    Chunks go by the plan's codecs where there is a `residual` for what those leave out, and as they are elsewhere.
    """

    number: int
    reduction: Reduction
    sums: Buffer
    unsettled: int
    guard: threading.Lock = field(default_factory=threading.Lock)
    tally: Tally = field(default_factory=Tally)
    residual: Residual | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the plan that this round goes by."""
        return self.reduction.plan.epoch

    def __str__(self) -> str:
        return f"round {self.number}, epoch {self.epoch}"


class Exchange:
    """One member's data plane. `roster` maps every member to where it listens.

    Threads: `run` belongs to one caller; `keep`, `reach`, `admit`, `take`, `gone` and `fail` may be called from any.
    """

    def __init__(
        self,
        member: str,
        plan: Plan,
        roster: Mapping[str, tuple[str, int]],
        secret: str,
        patience_s: float,
        after_round: int = 0,
    ) -> None:
        self.member = member
        self.members = plan.members
        self._roster = roster
        self._patience_s = patience_s
        self._greeting = greeting(member, secret)
        self._format = FrameFormat(len(plan.members))
        self._changed = threading.Condition()
        self._plans = {plan.epoch: plan}
        self._duties: dict[int, tuple[Duty, ...]] = {plan.epoch: duties(plan, member)}
        self._agreed = plan.epoch
        self._successor = plan.epoch
        self._number = after_round
        self._rounds: dict[int, Round] = {}
        self._shape: tuple[int, torch.dtype] | None = None
        self._layout: tuple[int, Layout] | None = None
        self._buffers = Alternating()
        self._senders: dict[str, Sender] = {}
        self._gone: dict[str, str] = {}
        self._failure: SyncError | None = None
        self._connect(plan)

    @property
    def plan(self) -> Plan:
        """The plan that the next round goes by."""
        with self._changed:
            return self._plans[self._agreed]

    # -- plans ---------------------------------------------------------------------------------------------------

    def keep(self, plan: Plan) -> None:
        """Keep a plan beside the one in force; PlanError when it is no successor of those that are kept.

        Whichever was kept before and is not in force is no successor any more. It may be agreed on all the same, in
        the round that is on, and stays for that.
        """
        with self._changed:
            self._successor = self._agreed
            if plan.members != self.members:
                raise PlanError(f"the plan of epoch {plan.epoch} is for other members than the session")
            if plan.epoch <= max(self._plans):
                raise PlanError(f"epoch {plan.epoch} is not newer than {max(self._plans)}, which is held")
            self._plans[plan.epoch] = plan
            self._duties[plan.epoch] = duties(plan, self.member)

    def reach(self, plan: Plan) -> None:
        """Connect to the next hops of a plan that is kept; SyncError if they can't be reached.

        When this returns the plan is held: the rounds that begin from now on say so.
        """
        deadline = time.monotonic() + self._patience_s
        for sender in self._connect(plan):
            if not sender.await_connection(deadline - time.monotonic()):
                raise SyncError(f"epoch {plan.epoch}: no connection to {sender.peer}: {sender.failure or 'too late'}")
        with self._changed:
            if plan.epoch == max(self._plans):
                self._successor = plan.epoch

    def _connect(self, plan: Plan) -> list[Sender]:
        return [self._sender(peer) for peer in sorted(plan.next_hops(self.member))]

    def _sender(self, peer: str) -> Sender:
        with self._changed:
            sender = self._senders.get(peer)
            if sender is None or (sender.failure and not sender.connected):
                sender = Sender(peer, self._roster[peer], self._greeting, self._patience_s, self._undelivered)
                self._senders[peer] = sender
            return sender

    # -- rounds --------------------------------------------------------------------------------------------------

    def run(self, values: torch.Tensor, weight: float, timeout_s: float, residual: Residual | None = None) -> Round:
        """Replace `values` (flat, CPU) by the members' weighted mean; the round, which is over then.

        With a `residual` (for float32 alone) chunks are encoded as the plan says.

        SyncError when it can't be finished: it names the peers that were waited for, the epoch and the round.
        """
        deadline = time.monotonic() + timeout_s
        current, successor = self._begin(values)
        reduction = current.reduction
        if residual is not None and (reduction.encodes or residual.values is not None):
            residual.open(len(values))
            current.residual = residual
        for number in reduction.layout.front_first:
            chunk = reduction.layout.chunks[number]
            with current.guard:
                owed = current.residual.pay(chunk.start, chunk.stop) if current.residual else None
                complete = reduction.own(number, values[chunk.start : chunk.stop], weight, successor, owed)
            if complete is not None:
                self._forward(current, number, complete)
        self._wait(current, deadline)
        values.copy_(current.sums.tensor)
        self._agreed = reduction.agreed
        return current

    def _begin(self, values: torch.Tensor) -> tuple[Round, int]:
        """Enter the next round; it, and the epoch that this member is ready to go by after it."""
        with self._changed:
            if self._failure is not None:
                raise self._failure
            number = self._number + 1
            current = self._rounds.get(number)
            if current is None:
                current = self._open(number, self._agreed, len(values), values.dtype)
            else:
                self._check_same(current, values)
            self._number = number
            self._shape = (len(values), values.dtype)
            self._forget(current)
            self._changed.notify_all()
            return current, max(self._successor, current.epoch)

    def _check_same(self, current: Round, values: torch.Tensor) -> None:
        elements, dtype = self._shape_of(current)
        if (current.epoch, elements, dtype) != (self._agreed, len(values), values.dtype):
            raise SyncError(
                f"{current}: peers began it with {elements} elements of {dtype}, "
                f"this member has {len(values)} of {values.dtype} and goes by epoch {self._agreed}"
            )

    def _open(self, number: int, epoch: int, elements: int, dtype: torch.dtype) -> Round:
        plan = self._plans[epoch]
        layout = self._layout_of(plan, elements, dtype)
        sums = self._buffers.take(number, elements, dtype)
        reduction = Reduction(plan, self._duties[epoch], layout, sums.tensor)
        opened = Round(number, reduction, sums, len(layout.chunks))
        self._rounds[number] = opened
        return opened

    def _layout_of(self, plan: Plan, elements: int, dtype: torch.dtype) -> Layout:
        """The plan's cut, kept from one round to the next: making it costs 1 µs a chunk."""
        if self._layout is not None:
            epoch, layout = self._layout
            if (epoch, layout.elements, layout.itemsize) == (plan.epoch, elements, dtype.itemsize):
                return layout
        layout = Layout(plan, elements, dtype.itemsize)
        self._layout = plan.epoch, layout
        return layout

    def _forget(self, current: Round) -> None:
        """Drop what no frame can belong to any more: rounds before this one, plans before its."""
        for number in [n for n in self._rounds if n < current.number]:
            del self._rounds[number]
        for epoch in [e for e in self._plans if e < current.epoch]:
            del self._plans[epoch], self._duties[epoch]

    def _wait(self, current: Round, deadline: float) -> None:
        with self._changed:
            while current.unsettled:
                if self._failure is not None:
                    raise self._failure
                self._check_gone(current)
                if (left := deadline - time.monotonic()) <= 0:
                    raise SyncError(f"{current}: out of time, waiting for {_listed(self._awaited(current))}")
                self._changed.wait(left)

    def _check_gone(self, current: Round) -> None:
        if not self._gone:
            return
        awaited = self._awaited(current)
        for peer in awaited.keys() & self._gone.keys():
            raise SyncError(f"{current}: {peer} is gone ({self._gone[peer]}); it owed {awaited[peer]}")

    def _awaited(self, current: Round) -> dict[str, str]:
        with current.guard:
            return current.reduction.awaited()

    # -- chunks --------------------------------------------------------------------------------------------------

    def admit(self, peer: str, head: Frame) -> int:
        """The number of the chunk that a frame is for; waits until this member is ready to take it."""
        with self._changed:
            if head.epoch not in self._plans:
                raise FrameError(f"round {head.round}: epoch {head.epoch} is not held")
            if not max(self._number, 1) <= head.round <= self._number + 1:
                raise FrameError(f"round {head.round} is neither {self._number}, which is on, nor the next")
            while head.round > self._number and not self._may_begin(head):
                if self._failure is not None:
                    raise self._failure
                self._changed.wait()
            target = self._rounds.get(head.round)
            if target is None:
                assert self._shape is not None
                target = self._open(head.round, head.epoch, *self._shape)
        layout = target.reduction.layout
        if (head.epoch, head.elements, payload.element_type(head.dtype)) != (target.epoch, *self._shape_of(target)):
            raise FrameError(f"{target}: a frame of epoch {head.epoch} with {head.elements} elements")
        number = layout.find(head.tree, head.offset)
        if not payload.fits(head.dtype, len(layout.chunks[number]), head.length):
            raise FrameError(f"{target}: a chunk of {len(layout.chunks[number])} elements in {head.length} bytes")
        return number

    def _may_begin(self, head: Frame) -> bool:
        """Whether a peer's frame may open the round after this one: only with a tensor of the shape we know.

        So a frame makes nobody set aside more than what training needs anyway.
        """
        return self._shape == (head.elements, payload.element_type(head.dtype))

    def take(self, peer: str, head: Frame, raw: bytes, number: int, data: memoryview) -> None:
        """Add a child's partial sum, or take the mean; forward what that completes."""
        with self._changed:
            target = self._rounds.get(head.round)
        if target is None:
            raise FrameError(f"round {head.round} is over")
        values = payload.decode(head.dtype, data, len(target.reduction.layout.chunks[number]))
        part = Part(head.contributors, head.weight, head.successor)
        with target.guard:
            target.tally.received_bytes += len(raw) + len(data)
            target.tally.arrived[peer] = time.monotonic()
            if head.kind is Kind.PARTIAL:
                complete = target.reduction.add(number, peer, values, part)
                fresh = False
            else:
                complete = None
                fresh = target.reduction.accept(number, peer, values, part)
        if complete is not None:
            self._forward(target, number, complete)
        if fresh:
            encoded = head.dtype not in DTYPES and bool(self._duty(target, number).mean_to)
            self._broadcast(target, number, raw, memoryview(bytes(data)) if encoded else self._plain(target, number))

    def _forward(self, current: Round, number: int, part: Part) -> None:
        """Pass on a chunk that holds all that was to be added here: up as a partial sum, or down as the mean."""
        duty = self._duty(current, number)
        if duty.partials_to is not None:
            raw, data = self._packed(current, number, Kind.PARTIAL, part)
            self._send(current, number, Kind.PARTIAL, raw, data, (duty.partials_to,))
            return
        with current.guard:
            part = current.reduction.finish(number)
        self._broadcast(current, number, *self._packed(current, number, Kind.MEAN, part))

    def _broadcast(self, current: Round, number: int, raw: bytes, data: memoryview) -> None:
        """Pass the mean on. It is the same bytes all the way down, so it is encoded, packed and summed up once."""
        self._send(current, number, Kind.MEAN, raw, data, self._duty(current, number).mean_to)
        with current.guard:
            current.unsettled -= 1
        if not current.unsettled:
            with self._changed:
                self._changed.notify_all()

    def _send(
        self, current: Round, number: int, kind: Kind, raw: bytes, data: memoryview, peers: tuple[str, ...]
    ) -> None:
        chunk = current.reduction.layout.chunks[number]
        with current.guard:
            current.tally.sent_bytes += len(peers) * (len(raw) + len(data))
        for peer in peers:
            priority = (current.number, chunk.index, int(kind is Kind.PARTIAL), chunk.tree)
            self._sender(peer).put(priority, raw, data)

    def _packed(self, current: Round, number: int, kind: Kind, part: Part) -> tuple[bytes, memoryview]:
        chunk = current.reduction.layout.chunks[number]
        code, data = self._encoded(current, number, kind, part)
        head = Frame(
            kind=kind,
            dtype=code,
            tree=chunk.tree,
            epoch=current.epoch,
            successor=part.successor,
            round=current.number,
            elements=current.reduction.layout.elements,
            offset=chunk.start,
            length=len(data),
            weight=part.weight,
            contributors=part.contributors,
        )
        return self._format.pack(head, data), data

    def _encoded(self, current: Round, number: int, kind: Kind, part: Part) -> tuple[int, memoryview]:
        """What the plan's codec makes of a chunk, and its code. The chunk becomes what peers will decode."""
        duty, view = self._duty(current, number), current.reduction.view(number)
        codec = duty.partial_codec if kind is Kind.PARTIAL else duty.mean_codec
        residual = current.residual
        if residual is None or codec.size(len(view)) >= PLAIN.size(len(view)):
            return CODES[view.dtype], self._plain(current, number)
        data, decoded = payload.encode(codec, view)
        scale = part.weight if kind is Kind.MEAN else 1.0  # residuals are in units of sums
        residual.owe(current.reduction.layout.chunks[number].start, (view - decoded).mul_(scale))
        view.copy_(decoded)
        return codec.code, data

    def _plain(self, current: Round, number: int) -> memoryview:
        chunk = current.reduction.layout.chunks[number]
        return current.sums.slice(chunk.start, chunk.stop)

    def _duty(self, current: Round, number: int) -> Duty:
        return current.reduction.duties[current.reduction.layout.chunks[number].tree]

    @staticmethod
    def _shape_of(current: Round) -> tuple[int, torch.dtype]:
        return current.reduction.layout.elements, current.sums.tensor.dtype

    # -- ends ----------------------------------------------------------------------------------------------------

    def gone(self, peer: str, reason: str) -> None:
        """A peer's connection ended: an error for the rounds that wait for it, and only for those."""
        with self._changed:
            self._gone[peer] = reason
            self._changed.notify_all()

    def fail(self, error: SyncError) -> None:
        """End the round that is on, and every later one, with an error; the first one counts."""
        with self._changed:
            if self._failure is None:
                self._failure = error
            self._changed.notify_all()

    def _undelivered(self, peer: str, reason: str) -> None:
        self.fail(SyncError(f"round {self._number}, epoch {self._agreed}: can't send to {peer}: {reason}"))

    def samples(self) -> tuple[PeerSample, ...]:
        """What each next hop's path did since the last call."""
        with self._changed:
            senders = list(self._senders.values())
        return tuple(sample for sender in senders if (sample := sender.sample()) is not None)

    def drain(self, timeout_s: float) -> None:
        """Wait until the peers have read all that was sent to them, then close the connections to them."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            senders = list(self._senders.values())
        for sender in senders:
            sender.finish()
        for sender in senders:
            sender.join(deadline - time.monotonic())

    def close(self) -> None:
        """Close the connections to peers at once, and let go of who waits."""
        self.fail(SyncError("the session is closed"))
        with self._changed:
            senders = list(self._senders.values())
        for sender in senders:
            sender.abort()
        for sender in senders:
            sender.join(0)


def _listed(awaited: Mapping[str, str]) -> str:
    return ", ".join(f"{peer} ({owed})" for peer, owed in sorted(awaited.items()))
