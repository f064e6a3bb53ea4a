"""The rounds that are on at a member: at most two, and the one that peers may begin before it.

Their sums stand in a room each. Round k + 1 may begin to fill while this member is still in round k, so two are needed.
A third is where rounds overlap (see AllReduceGroup), and k + 1 has begun here when k + 2 begins to fill; and one more
where what an older round queued has not left yet: a member that waits for that may be a round behind, and still take
part in the newest.

What the threads of a group wait for, and what ends all their waiting.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import torch

from testbed.plan import Plan
from testbed.protocol import MeanSlice
from testbed.sync.allreduce.chunk_codec import ChunkHeader, ChunkHeaderFormat, Rooms, element_type
from testbed.sync.allreduce.held_plans import HeldPlans
from testbed.sync.allreduce.reduction import Reduction
from testbed.sync.allreduce.round import Round
from testbed.sync.allreduce.sending import Departures, SendPacing
from testbed.sync.errors import FrameError, SyncError
from testbed.sync.transport import Outbox


class RoundProgress:
    """`changed` guards a group's rounds, and is notified when something about them changes. `started` is set once the
    group has a round to begin with; until then frames wait. `failure` ends every round and every wait."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.started = threading.Event()
        self.failure: SyncError | None = None
        self._told: list[Callable[[SyncError], None]] = []

    def check(self) -> None:
        """Raise the failure, if there is one."""
        if self.failure is not None:
            raise self.failure

    def notify(self) -> None:
        """Something changed."""
        with self.changed:
            self.changed.notify_all()

    def on_failure(self, call: Callable[[SyncError], None]) -> None:
        """Have `call` called with the failure, at once where there is one; else on the thread that brings it."""
        with self.changed:
            if self.failure is None:
                self._told.append(call)
                return
        call(self.failure)

    def fail(self, error: SyncError) -> None:
        """End the round that is on, and every later one, with an error; the first one counts."""
        with self.changed:
            told, self._told = self._told, []
            if self.failure is None:
                self.failure = error
            self.changed.notify_all()
        for call in told:
            call(error)


#: A tensor's number of elements and their type.
Shape = tuple[int, torch.dtype]


class RoundKind(NamedTuple):
    """What rounds have in common that take about as long: their plan's epoch, whom they are among, and the tensor.

    One number's mean takes all of its round to come back, 24 MiB's a hundredth: what was learned of the one let fast
    members send all of the other at once, and the round of 4.2 s took 5.3 s.
    """

    epoch: int
    among_all: bool
    shape: Shape


class Rounds:
    """By number; `number` is the newest that this member began, `finished` the last that is over here.

    No lock of its own. `on_step` is called by rounds (see Round), on any thread.
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
        self.number = after_round
        self.finished = after_round
        self._plans = plans
        self._outbox = outbox
        self._headers = headers
        self._in_order = in_order
        self._on_step = on_step
        self._rounds: dict[int, Round] = {}
        self._shapes: set[Shape] = set()
        self._rooms = Rooms()
        self._returns: dict[RoundKind, float] = {}

    @property
    def current(self) -> Round | None:
        """The newest round that this member began; None when it is no more, or there was none."""
        return self._rounds.get(self.number)

    def restart(self, after_round: int) -> None:
        """Begin with the round that follows `after_round`."""
        self.number = self.finished = after_round

    def had(self, shape: Shape) -> bool:
        """Whether there was a round for a tensor of this shape: then all members have had it."""
        return shape in self._shapes

    def beside(self, shape: Shape) -> Plan | None:
        """The plan of the round that may begin, for a tensor of this shape, while the current one is on; None when none
        may."""
        if self.number != self.finished + 1 or not self.had(shape):
            return None
        if self.current is None or not self.current.reduction.contribution.fixed:
            return None
        agreed = self.current.reduction.outcome.agreed
        following = None if agreed is None else self._plans.get(agreed)
        return None if following is None or following.groups or self.current.plan.groups else following

    def await_room(self, current: Round, timeout_s: float) -> None:
        """Wait until the round before has left the senders' queues, so that the round after may have its room.

        After a round among all this is so: each member that took part in it is done with the one before. SyncError
        when it takes too long.
        """
        before = self._rounds.get(current.number - 1)
        if before is not None and not before.departures.await_all_left(timeout_s):
            raise SyncError(f"{before}: out of time, its means can't be sent")

    def begin(self, epoch: int, values: torch.Tensor) -> Round:
        """This member begins the next round; SyncError when peers have begun it with another tensor."""
        number = self.number + 1
        begun = self._rounds.get(number) or self._open(number, epoch, (len(values), values.dtype))
        if (begun.epoch, *begun.shape) != (epoch, len(values), values.dtype):
            elements, dtype = begun.shape
            raise SyncError(
                f"{begun}: peers began it with {elements} elements of {dtype}, "
                f"this member has {len(values)} of {values.dtype} and goes by epoch {epoch}"
            )
        self.number = number
        self._shapes.add(begun.shape)
        self._forget()
        return begun

    def end(self, ended: Round) -> None:
        """A round is over here."""
        self.finished = ended.number
        kept = {kind: returns for kind, returns in self._returns.items() if kind.epoch == ended.epoch}
        self._returns = kept | {RoundKind(ended.epoch, ended.among_all, ended.shape): ended.pacing.returns}
        ended.leave()

    def freeze(self) -> tuple[int, list[MeanSlice]]:
        """Let nothing more become final; the number of the newest round, and what is final of it."""
        for one in self._rounds.values():
            one.freeze()
        return self.number, self.current.freeze() if self.current is not None else []

    def waits(self, header: ChunkHeader) -> bool:
        """Whether a chunk of a round that is to come must wait until this member begins it; FrameError when the round
        is long over, or nobody can be in it yet.

        A peer's chunk may open the round after this one with a tensor of a shape that there was alone: so it makes
        nobody set aside more than what training needs anyway.
        """
        latest = self._plans.last_before(self.number)
        if not max(min(self.number, self.finished + 1), 1) <= header.round <= latest:
            raise FrameError(f"round {header.round}: {self.number} is on, and {latest} the last to begin meanwhile")
        return header.round > self.number + (self.had(_shape(header)))

    def of(self, header: ChunkHeader) -> Round:
        """The round of a chunk that need not wait; FrameError when it is over."""
        found = self._rounds.get(header.round)
        if found is None:
            if header.round < self.number or header.epoch not in self._plans:
                raise FrameError(f"round {header.round} is over")
            found = self._open(header.round, header.epoch, _shape(header))
        return found

    def _open(self, number: int, epoch: int, shape: Shape) -> Round:
        plan = self._plans[epoch]
        among_all = plan.among_all(number)
        role = self._plans.role(epoch, among_all)
        layout = self._plans.layout(epoch, among_all, shape[0], shape[1].itemsize)
        sums = self._rooms.take(number, lambda older: self._done_with(older, number), *shape)
        before = self._rounds.get(number - 1)
        steady = before is not None and before.among_all and among_all and self.had(shape)
        returns = self._returns.get(RoundKind(epoch, among_all, shape), 1.0)
        opened = self._rounds[number] = Round(
            number,
            plan,
            Reduction(epoch, plan.members, role, layout, sums, self._in_order),
            sums,
            SendPacing(layout, role.group, returns),
            Departures(self._outbox, self._headers, number, epoch, shape[0], steady),
            self._on_step,
        )
        return opened

    def _done_with(self, older: int, number: int) -> bool:
        """Whether nothing will look at an older round's sums any more, once round `number` is opened."""
        if older > min(self.finished, number - 2):
            return False
        return older not in self._rounds or self._rounds[older].departures.all_left

    def _forget(self) -> None:
        """Drop what no frame can belong to any more.

        A member that is done with a round may still have to forward that round's frames.
        """
        for number in [n for n in self._rounds if n < min(self.number - 1, self.finished)]:
            del self._rounds[number]
        self._outbox.forget(self._plans.forget())


def _shape(header: ChunkHeader) -> Shape:
    """That of the tensor which a chunk is of; FrameError when there is no such type."""
    dtype = element_type(header.dtype)
    if dtype is None:
        raise FrameError(f"round {header.round}: no such type of elements: {header.dtype}")
    return header.elements, dtype
