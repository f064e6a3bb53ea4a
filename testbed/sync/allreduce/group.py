"""All-reduce over plans: the rounds that are on, at most two, and the plans they go by.

The caller's thread adds this member's values; a thread per connection adds what peers send, and passes it on.

    round k      own values ----- sums ----- means ------- over
    round k+1                     |     own values ----- sums ...      begins with the first mean of round k,
    round k+2                            before it is over: |          and once round k-1 is over
                                                            not yet

The first mean of round k tells that every member has begun round k, and, where any of them overlaps rounds, by which
epoch round k+1 goes; where none does, its last mean tells that. (Who overlaps says so with what it contributes; it may
from the next round on, when all know.) So a peer is at
most one round ahead, and its chunks are added to the next round's sums before this member has even begun it, if it has
had a tensor of that shape; if not, the connection waits. Waiting must be safe, that is, what a peer owes the rounds
that are on was queued before what waits. It is when a round begins only after the last one is over. Hence a round
begins before that only if all members have had its shape, and take its frames at once: if an earlier round had it.

Where members are in groups, one group may be further ahead of another, up to the next round among all, for which its
connections to the other's members wait in the same way; there rounds do not overlap.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch.profiler import record_function

from testbed.plan import Plan
from testbed.protocol import PeerSample, Slice
from testbed.sync.allreduce import payload
from testbed.sync.allreduce.held_plans import Plans
from testbed.sync.allreduce.layout import Layout
from testbed.sync.allreduce.reduction import Share
from testbed.sync.allreduce.role import Role
from testbed.sync.allreduce.round import Delivery, Round
from testbed.sync.buffers import Rooms
from testbed.sync.codecs import Residual
from testbed.sync.errors import FrameError, SyncError
from testbed.sync.transport import sockets
from testbed.sync.transport.frame import Frame, FrameFormat, Greeting, Kind
from testbed.sync.transport.outbox import Outbox
from testbed.sync.transport.probe import check_probe
from testbed.sync.transport.sender import Way


class Loss(NamedTuple):
    """A peer that is lost: its connection is `broken`, or it is only waited for."""

    peer: str
    why: str
    broken: bool = True


class Exchange:
    """One member's data plane, whose next round is the one `after_round`. `roster` maps members to where they listen.

    `reproducible` fixes the order of additions. SyncError when the congestion control that `way` names can't be had.
    What is sent goes through what `make_outbox` makes, which takes what Outbox does.

    With `on_lost`, a lost peer is told there, as is one waited for longer than `suspect_s` in a round, and waiting
    goes on: others decide what becomes of the round. Unless it is `started`, it begins with `start`; until then
    frames wait.

    Threads: `run`, or `begin` and `end`, belong to one caller each; `keep`, `reach`, `admit`, `come`, `gone` and `fail`
    may be called from any.
    """

    def __init__(
        self,
        plan: Plan,
        way: Way,
        roster: Mapping[str, tuple[str, int]],
        after_round: int = 0,
        reproducible: bool = False,
        on_lost: Callable[[Loss], None] | None = None,
        started: bool = True,
        make_outbox: Callable[..., Outbox] = Outbox,
    ) -> None:
        if way.congestion:
            sockets.check_congestion(way.congestion)
        self.member = way.member
        self.members = plan.members
        self._patience_s = way.patience_s
        self._reproducible = reproducible
        self._changed = threading.Condition()
        self._plans = Plans(way.member, plan)
        self._number = after_round
        self._finished = after_round
        self._rounds: dict[int, Round] = {}
        self._shapes: set[tuple[int, torch.dtype]] = set()
        self._layout: tuple[tuple[int, bool], Layout] | None = None
        self._rooms = Rooms()
        self._returns: tuple[Plan | None, float] = (None, 1.0)
        self._overlaps = self._overlapped = False
        self._lanes: dict[int, int] = {}
        self._drained: set[int] = set()
        self._streams = way.streams
        self._ended: Counter[str] = Counter()
        self._gone: dict[str, str] = {}
        self._failure: SyncError | None = None
        self._on_lost = on_lost
        self._started = threading.Event()
        if started:
            self._started.set()
        self.era = way.era
        self.suspect_s = float("inf")
        self.wire = FrameFormat(len(plan.members))
        self._outbox = make_outbox(way, self.wire, roster, self._undelivered)
        self._outbox.connect(plan)
        self._outbox.follow(plan)

    @property
    def plan(self) -> Plan:
        """The plan that the next round goes by."""
        with self._changed:
            return self._plans.in_force

    # -- plans ---------------------------------------------------------------------------------------------------

    def keep(self, plan: Plan) -> None:
        """Keep a plan beside the one in force; PlanError when it is no successor of those that are kept."""
        with self._changed:
            self._plans.keep(plan)

    def reach(self, plan: Plan) -> None:
        """Connect to the next hops of a plan that is kept; SyncError if they can't be reached.

        When this returns the plan is held: the rounds that begin from now on say so.
        """
        deadline = time.monotonic() + self._patience_s
        for sender in self._outbox.connect(plan):
            if not sender.await_connection(deadline - time.monotonic()):
                raise SyncError(f"epoch {plan.epoch}: no connection to {sender.peer}: {sender.failure or 'too late'}")
        with self._changed:
            self._plans.hold(plan)

    def confirm(self, epoch: int) -> None:
        """All members hold the plan of an epoch."""
        with self._changed:
            self._plans.confirm(epoch)

    def promise(self, epoch: int) -> None:
        """Say that this member is ready to go by `epoch`, the first of another era; PlanError as `keep`."""
        with self._changed:
            self._plans.promise(epoch)

    @property
    def agreed(self) -> int:
        """The epoch that the next round goes by."""
        return self._plans.agreed

    @property
    def newest(self) -> int:
        """The newest epoch that this member has heard of."""
        with self._changed:
            return self._plans.newest

    def start(self, after_round: int) -> None:
        """Begin with the round that follows `after_round`."""
        with self._changed:
            self._number = self._finished = after_round
        self._started.set()

    def freeze(self, error: SyncError) -> tuple[int, list[Slice]]:
        """End with `error`, and let nothing more become final; the round that is on or was last, and what is there."""
        self.fail(error)
        with self._changed:
            for opened in self._rounds.values():
                opened.freeze()
            current = self._rounds.get(self._number)
            return self._number, current.freeze() if current is not None else []

    # -- rounds --------------------------------------------------------------------------------------------------

    def run(self, values: torch.Tensor, weight: float, timeout_s: float, residual: Residual | None = None) -> Round:
        """Replace `values` (flat, CPU) by the weighted mean of those who take part; the round, which is over then.

        With a `residual` (for float32 alone) chunks are encoded as the plan says.

        SyncError when it can't be finished: it names the peers that were waited for, the epoch and the round. Values
        of chunks that were not final by then are as they were.
        """
        with record_function("sync.round"):
            return self.end(self.begin(values, weight, timeout_s, residual), timeout_s)

    def begin(
        self,
        values: torch.Tensor,
        weight: float,
        timeout_s: float,
        residual: Residual | None = None,
        overlaps: bool = False,
    ) -> Round:
        """The first half of `run`: returns as soon as `values` are on their way. Rounds end in their order.

        The next one may begin before this one's end if one was begun before so that it `overlaps`.
        """
        current = self._begin(values, time.monotonic() + timeout_s)
        if residual is not None:
            residual = self._open_residual(current, residual)
        with record_function("sync.add_own"):
            self._overlaps = self._overlaps or overlaps
            current.enter(self._share(current, values, weight), residual)
        return current

    def _share(self, current: Round, values: torch.Tensor, weight: float) -> Share:
        """What this member brings, and what says the epoch that it is ready to go by next.

        Epochs change in rounds among all, so in those alone a successor is agreed on.
        """

        def ready() -> int:
            return max(self._plans.successor, current.epoch) if current.among_all else current.epoch

        def confirmed() -> int:
            return max(self._plans.confirmed, current.epoch) if current.among_all else current.epoch

        if self._overlapped:
            successor = ready()
            return Share(values, weight, lambda: successor, lambda: current.epoch, True, self._overlaps)
        return Share(values, weight, ready, confirmed, False, self._overlaps)

    def end(self, current: Round, timeout_s: float) -> Round:
        """The second half of `run`: wait until a round that was begun is over."""
        deadline = time.monotonic() + timeout_s
        with record_function("sync.wait"):
            self._wait(current, deadline)
            self._await_previous(current, deadline)
        with self._changed:
            if current.among_all:
                assert current.reduction.agreed is not None
                self._plans.agree(current.epoch, current.reduction.agreed)
            self._overlapped = self._overlapped or current.reduction.overlapped
            self._finished = current.number
            self._returns = current.plan, current.returns
            current.leave()
            self._changed.notify_all()
        return current

    def _open_residual(self, current: Round, residual: Residual) -> Residual | None:
        if not current.reduction.role.encodes and residual.values is None:
            return None
        residual.open(current.shape[0])
        return residual

    def _begin(self, values: torch.Tensor, deadline: float) -> Round:
        """Enter the next round."""
        with self._changed:
            epoch = self._await_turn((len(values), values.dtype), deadline)
            number = self._number + 1
            current = self._rounds.get(number)
            if current is None:
                current = self._open(number, epoch, len(values), values.dtype)
            else:
                self._check_same(current, epoch, values)
            followed = self._rounds.get(self._number)
            self._number = number
            self._shapes.add(current.shape)
            self._forget(current)
            self._changed.notify_all()
        if followed is None or followed.epoch != current.epoch:
            self._outbox.follow(current.plan)
        return current

    def _await_turn(self, shape: tuple[int, torch.dtype], deadline: float) -> int:
        """Wait until the next round may begin; the epoch it goes by."""
        while True:
            if self._failure is not None:
                raise self._failure
            if self._number == self._finished:
                return self._plans.agreed
            current = self._rounds[self._number]
            if self._number == self._finished + 1 and shape in self._shapes and (plan := self._beside(current)):
                return plan.epoch
            if (left := deadline - time.monotonic()) <= 0:
                raise SyncError(f"{current}: out of time, waiting for {_listed(current.awaited())}")
            self._changed.wait(left)

    def _beside(self, current: Round) -> Plan | None:
        """The plan of the round that may begin while `current` is on; None when none may."""
        if not current.reduction.share.fixed:
            return None
        agreed = current.reduction.agreed
        following = None if agreed is None else self._plans.get(agreed)
        return None if following is None or following.groups or current.plan.groups else following

    def _check_same(self, current: Round, epoch: int, values: torch.Tensor) -> None:
        if (current.epoch, *current.shape) != (epoch, len(values), values.dtype):
            elements, dtype = current.shape
            raise SyncError(
                f"{current}: peers began it with {elements} elements of {dtype}, "
                f"this member has {len(values)} of {values.dtype} and goes by epoch {epoch}"
            )

    def _open(self, number: int, epoch: int, elements: int, dtype: torch.dtype) -> Round:
        plan = self._plans[epoch]
        among_all = plan.among_all(number)
        role = self._plans.role(epoch, among_all)
        layout = self._layout_of(plan, role, among_all, elements, dtype)
        sums = self._rooms.take(number, lambda older: self._done_with(older, number), elements, dtype)
        before = self._rounds.get(number - 1)
        steady = before is not None and before.among_all and among_all and (elements, dtype) in self._shapes
        known, returns = self._returns
        opened = Round(
            *(number, plan, role, layout, sums, self._outbox, self._stepped, steady, self._reproducible),
            returns=returns if known is plan else 1.0,
        )
        self._rounds[number] = opened
        return opened

    def _done_with(self, older: int, number: int) -> bool:
        """Whether nothing will look at an older round's sums any more, once round `number` is opened."""
        if older > min(self._finished, number - 2):
            return False
        return older not in self._rounds or self._rounds[older].sent

    def _layout_of(self, plan: Plan, role: Role, among_all: bool, elements: int, dtype: torch.dtype) -> Layout:
        """The plan's cut, kept from one round to the next: making it costs 1 µs a chunk."""
        of = plan.epoch, among_all
        if self._layout is not None:
            its, layout = self._layout
            if (its, layout.elements, layout.itemsize) == (of, elements, dtype.itemsize):
                return layout
        layout = Layout(role.party, plan.chunk_bytes, elements, dtype.itemsize)
        self._layout = of, layout
        return layout

    def _forget(self, current: Round) -> None:
        """Drop what no frame can belong to any more.

        A member that is done with a round may still have to forward that round's frames.
        """
        for number in [n for n in self._rounds if n < min(current.number - 1, self._finished)]:
            del self._rounds[number]
        self._plans.forget()

    def _stepped(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _wait(self, current: Round, deadline: float) -> None:
        suspect_at = time.monotonic() + self.suspect_s
        with self._changed:
            while not current.over:
                if self._failure is not None:
                    raise self._failure
                if self._on_lost is None:
                    self._check_gone(current)
                if (left := deadline - time.monotonic()) <= 0:
                    raise SyncError(f"{current}: out of time, waiting for {_listed(current.awaited())}")
                if time.monotonic() >= suspect_at:
                    suspect_at = float("inf")
                    self._suspect(current)
                self._changed.wait(min(left, max(suspect_at - time.monotonic(), 0)))

    def _suspect(self, current: Round) -> None:
        """Say who is waited for, longer than a round should take."""
        for peer, owed in current.awaited().items():
            if self._on_lost is not None:
                self._on_lost(Loss(peer, f"{current}: it owes {owed}", broken=False))

    def _await_previous(self, current: Round, deadline: float) -> None:
        """Wait until the round before has left the senders' queues, so that the round after may have its room.

        After a round among all this is so: each member that took part in it is done with the one before.
        """
        before = self._rounds.get(current.number - 1)
        if before is not None and self._failure is None and not before.await_sent(deadline - time.monotonic()):
            raise SyncError(f"{before}: out of time, its means can't be sent")

    def _check_gone(self, current: Round) -> None:
        """Raise SyncError when who owes something is gone. What it sent may still be with those who forward for it."""
        if not self._gone:
            return
        for peer, owed in current.awaited().items():
            if peer in self._gone and self._forwarders(current.plan, peer) <= self._gone.keys():
                raise SyncError(f"{current}: {peer} is gone ({self._gone[peer]}); it owed {owed}")

    def _forwarders(self, plan: Plan, source: str) -> set[str]:
        routes = (route for route in plan.auxiliary if (route.source, route.target) == (source, self.member))
        return {via for route in routes for via in route.via}

    # -- chunks --------------------------------------------------------------------------------------------------

    def receiver(self, hello: Greeting) -> Exchange:
        """Itself, for who is a member; FrameError for who is not."""
        if hello.member not in self.members or hello.era != self.era:
            raise FrameError(f"{hello.member!r} is no member in era {hello.era}")
        return self

    def admit(self, peer: str, lane: int, head: Frame) -> Delivery:
        """What becomes of a frame that came from `peer`; waits until this member is ready to take it."""
        if head.kind is Kind.PROBE:
            check_probe(head, lane)
            return Delivery(None, lambda _: None)
        if head.kind is Kind.MESSAGE:
            raise FrameError("a message of decentralized training, where members reduce")
        self._started.wait()
        if (head.left + 1 if head.route else 0) != lane:
            raise FrameError(f"a frame with {head.left} members to go in lane {lane}")
        plan = self._plan_of(head)
        if head.route:
            route = self._outbox.route(plan, peer, head)
            if head.left:
                return self._forwarding(plan, peer, head)
            peer = route.source
        return self._round_of(head, plan).deliver(peer, head)

    def _plan_of(self, head: Frame) -> Plan:
        with self._changed:
            plan = self._plans.get(head.epoch)
        if plan is None:
            raise FrameError(f"round {head.round}: epoch {head.epoch} is not held")
        return plan

    def _forwarding(self, plan: Plan, peer: str, head: Frame) -> Delivery:
        if head.length > plan.chunk_bytes:
            raise FrameError(f"a frame to forward of {head.length} bytes; chunks have {plan.chunk_bytes}")
        onward = self._outbox.forward(plan, peer, head)
        return Delivery(memoryview(bytearray(head.length)), onward)

    def _round_of(self, head: Frame, plan: Plan) -> Round:
        with self._changed:
            latest = (self._number // plan.period + 1) * plan.period  # the next among all: nobody gets past that
            if not max(min(self._number, self._finished + 1), 1) <= head.round <= latest:
                raise FrameError(f"round {head.round}: {self._number} is on, and {latest} the last to begin meanwhile")
            while head.round > self._number and not self._may_begin(head):
                if self._failure is not None:
                    raise self._failure
                self._changed.wait()
            target = self._rounds.get(head.round)
            if target is None:
                if head.round < self._number or head.epoch not in self._plans:
                    raise FrameError(f"round {head.round} is over")
                target = self._open(head.round, head.epoch, *_shape(head))
            return target

    def _may_begin(self, head: Frame) -> bool:
        """Whether a peer's frame may open the round after this one: only with a tensor of a shape that there was.

        So a frame makes nobody set aside more than what training needs anyway.
        """
        return head.round == self._number + 1 and _shape(head) in self._shapes

    # -- ends ----------------------------------------------------------------------------------------------------

    def come(self, lane: int) -> bool:
        """A peer wants to send in a lane; False when this member is done with forwarding what comes there."""
        with self._changed:
            welcome = lane not in self._drained
            self._lanes[lane] = self._lanes.get(lane, 0) + welcome
            return welcome

    def gone(self, peer: str, lane: int, error: str) -> None:
        """A peer's connection ended: an error for the rounds that wait for the peer, and only for those.

        One that ended well may have ended before others to the same peer, which still bring what is owed.
        """
        with self._changed:
            self._lanes[lane] -= 1
            if not lane:
                self._ended[peer] += 1
                if error or self._ended[peer] == self._streams:
                    self._gone[peer] = error or "closed its connection"
            lost = self._gone.get(peer) if self._failure is None else None
            self._changed.notify_all()
        if lost and self._on_lost is not None:
            self._on_lost(Loss(peer, lost))

    def fail(self, error: SyncError) -> None:
        """End the round that is on, and every later one, with an error; the first one counts."""
        with self._changed:
            if self._failure is None:
                self._failure = error
            self._changed.notify_all()

    def _undelivered(self, peer: str, reason: str) -> None:
        if self._on_lost is not None:
            if self._failure is None:
                self._on_lost(Loss(peer, f"can't send to it: {reason}"))
            return
        self.fail(SyncError(f"round {self._number}, epoch {self._plans.agreed}: can't send to {peer}: {reason}"))

    def means_of(self, number: int) -> Callable[[int, int], torch.Tensor]:
        """What copies means of a round that is over. The round's sums stay until the one after the next begins."""
        return self._rounds[number].reduction.means

    def samples(self) -> tuple[PeerSample, ...]:
        """What each next hop's path did since the last call."""
        return self._outbox.samples()

    def probe(self, peer: str, most: int, seconds: float) -> None:
        """Send a peer what means nothing for `seconds`, at most `most` bytes; returns at once."""
        if peer in self.members and peer != self.member:
            self._outbox.probe(peer, most, seconds)

    def sending_s(self) -> float:
        """Seconds that all connections together have spent in sending since they began."""
        return self._outbox.sending_s()

    def drain(self, timeout_s: float) -> None:
        """Wait until the peers have read all that was sent to them, then close the connections to them."""
        self._outbox.drain(timeout_s, self._await_lane)

    def _await_lane(self, lane: int, timeout_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._lanes.get(lane) or self._failure, max(timeout_s, 0))
            self._drained.add(lane)

    def close(self) -> None:
        """Close the connections to peers at once, and let go of who waits."""
        self.fail(SyncError("the session is closed"))
        self._started.set()
        self._outbox.close()


def _shape(head: Frame) -> tuple[int, torch.dtype]:
    """That of the tensor which a frame is of; FrameError when there is no such type."""
    dtype = payload.element_type(head.dtype)
    if dtype is None:
        raise FrameError(f"round {head.round}: no such type of elements: {head.dtype}")
    return head.elements, dtype


def _listed(awaited: Mapping[str, str]) -> str:
    return ", ".join(f"{peer} ({owed})" for peer, owed in sorted(awaited.items()))
