"""The rounds in progress at a member: at most two, and the one that peers may begin before this member does.

Each round's sums have a buffer. Chunks of round k + 1 may come while this member is in round k, so two buffers are
needed. A third is needed where rounds overlap (see group.py), because chunks of round k + 2 may come once k + 1 has
begun here. One more is needed while frames of an older round are queued: a member that waits until they are sent may be
a round behind, and still take part in the newest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from copy import copy
from typing import NamedTuple

import torch

from testbed.plan import Plan
from testbed.protocol import MeanSlice
from testbed.sync.allreduce.chunk_codec import ChunkHeader, ChunkHeaderFormat, SumsPool, element_type
from testbed.sync.allreduce.held_plans import HeldPlans
from testbed.sync.allreduce.reduction import Reduction
from testbed.sync.allreduce.round import Round
from testbed.sync.allreduce.sending import OutgoingFrames, SendPacing
from testbed.sync.errors import FrameError, SyncError
from testbed.sync.transport import Outbox


class RoundProgress:
    """The lock of a group's rounds, and the failure that ends every round and every wait."""

    def __init__(self) -> None:
        #: Guards a group's rounds; notified whenever they change.
        self.changed = threading.Condition()
        #: Set once the group knows its first round; frames wait until then.
        self.started = threading.Event()
        self.failure: SyncError | None = None
        self._callbacks: list[Callable[[SyncError], None]] = []

    def check(self) -> None:
        """Raise a copy of the failure, if there is one: raised itself, it would keep the frames that it passed."""
        if self.failure is not None:
            raise copy(self.failure)

    def notify(self) -> None:
        """Wake all threads that wait for a change."""
        with self.changed:
            self.changed.notify_all()

    def on_failure(self, call: Callable[[SyncError], None]) -> None:
        """Call `call` with the failure: at once if there is one, otherwise later, on the thread that reports it."""
        with self.changed:
            if self.failure is None:
                self._callbacks.append(call)
                return
        call(self.failure)

    def fail(self, error: SyncError) -> None:
        """End the current round and every later one with `error`. Only the first failure counts."""
        with self.changed:
            callbacks, self._callbacks = self._callbacks, []
            if self.failure is None:
                self.failure = error
            self.changed.notify_all()
        for call in callbacks:
            call(error)


#: A tensor's number of elements and their type.
Shape = tuple[int, torch.dtype]


class RoundKind(NamedTuple):
    """The key of rounds whose means take a similar time to come back: `SendPacing.return_part` is kept by kind.

    Kinds are kept apart because the mean of a single number takes a whole round to come back, and the first mean of
    24 MiB a hundredth of it. With the single number's figure, fast members sent all of the large tensor at once, and
    its round took 5.3 s instead of 4.2 s.
    """

    epoch: int
    among_all: bool
    shape: Shape


class Rounds:
    """The rounds that this member, or a peer before it, has begun, by number. The caller holds the group's lock.

    Args:
        after_round: The last completed round.
        in_order: Fix the order of additions.
        on_step: Called by rounds on any thread, see Round.
    """

    def __init__(
        self,
        plans: HeldPlans,
        outbox: Outbox,
        headers: ChunkHeaderFormat,
        after_round: int,
        in_order: bool,
        on_step: Callable[[], None],
    ) -> None:
        #: The newest round that this member began.
        self.number = after_round
        #: The last completed round.
        self.finished = after_round
        self._plans = plans
        self._outbox = outbox
        self._headers = headers
        self._in_order = in_order
        self._on_step = on_step
        self._rounds: dict[int, Round] = {}
        self._closed = False
        self._shapes: set[Shape] = set()
        self._pool = SumsPool()
        self._return_parts: dict[RoundKind, float] = {}

    @property
    def current(self) -> Round | None:
        """The newest round that this member began, or None if it was dropped or none began."""
        return self._rounds.get(self.number)

    def restart(self, after_round: int) -> None:
        """Continue with the round that follows `after_round`."""
        self.number = self.finished = after_round

    def had(self, shape: Shape) -> bool:
        """Return whether some round had a tensor of this shape, so that all members have had it."""
        return shape in self._shapes

    def beside(self, shape: Shape) -> Plan | None:
        """Return the plan of the next round if it may begin while the current one is still running, else None."""
        if self.number != self.finished + 1 or not self.had(shape):
            return None
        if self.current is None or not self.current.reduction.contribution.fixed:
            return None
        agreed = self.current.reduction.outcome.agreed
        following = None if agreed is None else self._plans.get(agreed)
        return None if following is None or following.groups or self.current.plan.groups else following

    def await_room(self, current: Round, timeout_s: float) -> None:
        """Wait until the previous round's frames were sent or given up, so that the next round may use its buffer.

        After a round among all, no wait is needed: every member that took part has completed the round before.

        Raises:
            SyncError: The frames were not sent within `timeout_s`.
        """
        before = self._rounds.get(current.number - 1)
        if before is not None and not before.outgoing.await_all_sent(timeout_s):
            raise before.error("timed out while its means were sent", "timeout")

    def give_up(self) -> None:
        """End all waits for queued frames, because the group has failed."""
        for one in self._rounds.values():
            one.outgoing.give_up()

    def begin(self, epoch: int, values: torch.Tensor) -> Round:
        """Begin the next round at this member, under the plan of `epoch`.

        Raises:
            SyncError: Peers began the round with another tensor or epoch.
        """
        number = self.number + 1
        begun = self._rounds.get(number) or self._open(number, epoch, (len(values), values.dtype))
        if (begun.epoch, *begun.shape) != (epoch, len(values), values.dtype):
            elements, dtype = begun.shape
            raise begun.error(
                f"peers began this round with {elements} elements of {dtype}, "
                f"this member has {len(values)} of {values.dtype} and uses epoch {epoch}"
            )
        self.number = number
        self._shapes.add(begun.shape)
        self._forget()
        return begun

    def end(self, ended: Round) -> None:
        """Record that a round is over at this member."""
        self.finished = ended.number
        kept = {kind: part for kind, part in self._return_parts.items() if kind.epoch == ended.epoch}
        self._return_parts = kept | {RoundKind(ended.epoch, ended.among_all, ended.shape): ended.pacing.return_part}
        ended.finish()

    def freeze(self) -> tuple[int, tuple[MeanSlice, ...]]:
        """Accept no more means. Returns the newest round's number and its final slices."""
        for one in self._rounds.values():
            one.freeze()
        return self.number, self.current.freeze() if self.current is not None else ()

    def close(self) -> None:
        """Free all rounds and buffers. Later frames belong to rounds that are over."""
        self._closed = True
        self._rounds.clear()
        self._pool = SumsPool()

    def waits(self, header: ChunkHeader) -> bool:
        """Return whether a chunk must wait until this member begins the chunk's round.

        A chunk may open only the next round, and only with a shape that an earlier round had, so no peer can make
        this member allocate more than training needs anyway.

        Raises:
            FrameError: The round is long over, or no member can be in it yet.
        """
        latest = self._plans.last_before(self.number)
        if not max(min(self.number, self.finished + 1), 1) <= header.round <= latest:
            raise FrameError(f"round {header.round}: this member is in {self.number}, no member can be beyond {latest}")
        return header.round > self.number + (self.had(_shape(header)))

    def of(self, header: ChunkHeader) -> Round:
        """Return the round of a chunk that need not wait, and open it if needed.

        Raises:
            FrameError: The round is over.
        """
        found = self._rounds.get(header.round)
        if found is None:
            if self._closed or header.round < self.number or header.epoch not in self._plans:
                raise FrameError(f"a frame is of round {header.round}, which is over at this member")
            found = self._open(header.round, header.epoch, _shape(header))
        return found

    def _open(self, number: int, epoch: int, shape: Shape) -> Round:
        plan = self._plans[epoch]
        among_all = plan.among_all(number)
        role = self._plans.role(epoch, among_all)
        layout = self._plans.layout(epoch, among_all, shape[0], shape[1].itemsize)
        sums = self._pool.take(number, lambda older: self._done_with(older, number), *shape)
        before = self._rounds.get(number - 1)
        steady = before is not None and before.among_all and among_all and self.had(shape)
        return_part = self._return_parts.get(RoundKind(epoch, among_all, shape), 1.0)
        opened = self._rounds[number] = Round(
            number,
            plan,
            Reduction(epoch, plan.members, role, layout, sums, self._in_order),
            sums,
            SendPacing(layout, role.group, return_part),
            OutgoingFrames(self._outbox, self._headers, number, epoch, shape[0], steady),
            self._on_step,
        )
        return opened

    def _done_with(self, older: int, number: int) -> bool:
        """Return whether the sums of round `older` are not needed once round `number` is opened."""
        if older > min(self.finished, number - 2):
            return False
        return older not in self._rounds or self._rounds[older].outgoing.all_sent

    def _forget(self) -> None:
        """Drop the rounds that no frame can belong to. A member may have to forward frames of a completed round."""
        for number in [n for n in self._rounds if n < min(self.number - 1, self.finished)]:
            del self._rounds[number]
        self._outbox.forget(self._plans.forget())


def _shape(header: ChunkHeader) -> Shape:
    """Return the shape of a chunk's tensor; raise FrameError for an unknown element type."""
    dtype = element_type(header.dtype)
    if dtype is None:
        raise FrameError(f"round {header.round}: unknown element type {header.dtype}")
    return header.elements, dtype
