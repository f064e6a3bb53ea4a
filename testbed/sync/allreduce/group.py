"""All-reduce over plans, among the members of one generation.

The caller's thread adds this member's values; a thread per connection adds what peers send, and passes it on.

    round k      own values ----- sums ----- means ------- over
    round k+1                     |     own values ----- sums ...      begins with the first mean of round k,
    round k+2                            before it is over: |          and once round k-1 is over
                                                            not yet

The first mean of round k tells that every member has begun round k, and, where any of them overlaps rounds, by which
epoch round k+1 goes; where none does, its last mean tells that. (A member that overlaps rounds says so with what it
contributes; it may from the next round on, when all know.) So a peer is at most one round ahead, and its chunks are
added to the next round's sums before this member has even begun it, if it has had a tensor of that shape; if not, the
connection waits. Waiting must be safe, that is, what a peer owes the rounds that are on was queued before what waits.
It is when a round begins only after the last one is over. Hence a round begins before that only if all members have
had its shape, and take its frames at once: if an earlier round had it.

Where members are in groups, one group may be further ahead of another, up to the next round among all, for which its
connections to the other's members wait in the same way; there rounds do not overlap. A plan need not wait for that
round to take force, see swap_agreement.py.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
from torch.profiler import record_function

from testbed.plan import Plan
from testbed.protocol import MeanSlice
from testbed.sync.allreduce.chunk_codec import ChunkHeaderFormat
from testbed.sync.allreduce.early_swaps import EarlySwaps, SwapConnection
from testbed.sync.allreduce.held_plans import HeldPlans
from testbed.sync.allreduce.receiver import ChunkReceiver, Loss, Presence
from testbed.sync.allreduce.reduction import Contribution
from testbed.sync.allreduce.role import route_table
from testbed.sync.allreduce.round import Round, RoundResult
from testbed.sync.allreduce.rounds import RoundProgress, Rounds, Shape
from testbed.sync.codecs import Residual
from testbed.sync.errors import FrameError, SyncError
from testbed.sync.transport import Greeting, Outbox, TransportSettings, sockets

#: Members by where they listen.
Roster = Mapping[str, tuple[str, int]]

NOBODY: Roster = MappingProxyType({})


class AllReduceGroup:
    """One member's part among the members of `plan`, whose next round is the one `after_round`; see `start` for None.

    `reproducible` fixes the order of additions. SyncError when the congestion control that the settings name can't be
    had. What is sent goes through what `make_outbox` makes, which takes what Outbox does.

    With `on_lost`, a lost peer is told there, as is one waited for longer than `suspect_s` in a round, and waiting
    goes on: others decide what becomes of the round.

    Threads: `begin`, and what it returns, belong to one caller each; the rest may be called from any.
    """

    def __init__(
        self,
        plan: Plan,
        settings: TransportSettings,
        roster: Roster,
        after_round: int | None = 0,
        reproducible: bool = False,
        on_lost: Callable[[Loss], None] | None = None,
        make_outbox: Callable[..., Outbox] = Outbox,
    ) -> None:
        if settings.congestion:
            sockets.check_congestion(settings.congestion)
        headers = ChunkHeaderFormat(len(plan.members))
        self.settings = settings
        self.members = plan.members
        self.plans = HeldPlans(settings.member, plan)
        self.outbox = make_outbox(settings, headers.size, roster, self._undelivered)
        self.suspect_s = float("inf")
        self._on_lost = on_lost
        self._overlaps = _Overlaps()
        self._progress = RoundProgress()
        self._presence = Presence(settings.streams)
        self._rounds = Rounds(self.plans, self.outbox, headers, after_round or 0, reproducible, self._progress.notify)
        self.swaps = EarlySwaps(settings, roster, self.plans, self._rounds, self._progress)
        self._receiver = ChunkReceiver(
            headers, self.plans, self._rounds, self._presence, self._progress, self.outbox, on_lost
        )
        if after_round is not None:
            self._progress.started.set()
        table = route_table(plan, settings.member)
        self.outbox.connect(table)
        self.outbox.follow(table)

    @property
    def current(self) -> AllReduceGroup:
        """Itself: the group in force of a static run."""
        return self

    @property
    def plan(self) -> Plan:
        """The plan that the next round goes by."""
        return self.plans.in_force

    @property
    def finished(self) -> int:
        """The last round that is over."""
        return self._rounds.finished

    def start(self, after_round: int) -> None:
        """Begin with the round that follows `after_round`, for a group that was made without; till then frames wait."""
        with self._progress.changed:
            self._rounds.restart(after_round)
        self._progress.started.set()

    def prepare(self, plan: Plan, roster: Roster = NOBODY, source: str = "") -> Callable[[], None]:
        """Keep a plan beside the one in force; PlanError when it is no successor of those that are kept. What it
        returns holds it, see `hold`. All members of the plan are those of the group, so nobody needs a `roster`."""
        self.plans.keep(plan)
        return partial(self.hold, plan)

    def hold(self, plan: Plan) -> None:
        """Connect to the next hops of a plan that `plans` keep; SyncError if they can't be reached.

        When this returns the plan is held: the rounds that begin from now on say so.
        """
        deadline = time.monotonic() + self.settings.timeout_s
        for sender in self.outbox.connect(route_table(plan, self.settings.member)):
            if not sender.await_connection(deadline - time.monotonic()):
                raise SyncError(
                    f"epoch {plan.epoch}: no connection to {sender.peer}: {sender.failure or 'too late'}",
                    rule="no-connection",
                    member=sender.peer,
                    epoch=plan.epoch,
                )
        self.plans.hold(plan.epoch)

    # -- rounds --------------------------------------------------------------------------------------------------

    def begin(
        self, values: torch.Tensor, weight: float, residual: Residual | None = None, overlaps: bool = False
    ) -> Callable[[], RoundResult]:
        """Begin to replace `values` (flat, CPU) by the weighted mean of the members who take part; returns as soon as
        they are on their way. What it returns waits until the round is over; rounds end in their order.

        With a `residual` (for float32 alone) chunks are encoded as the plan says. The next round may begin before this
        one's end if one was begun before so that it `overlaps`.

        SyncError when it can't be finished: it names the peers that were waited for, the epoch and the round. Values
        of chunks that were not final by then are as they were.
        """
        started_s, began, sending_s = time.time(), time.monotonic(), self.outbox.sending_s()
        followed = self._rounds.current
        with self._progress.changed:
            epoch = self._await_turn((len(values), values.dtype), began + self.settings.timeout_s)
            current = self._rounds.begin(epoch, values)
            self._progress.changed.notify_all()
        if followed is None or followed.epoch != current.epoch:
            self.outbox.follow(route_table(current.plan, self.settings.member))
        with record_function("sync.add_own"):
            self._overlaps.asked = self._overlaps.asked or overlaps
            current.enter(self._contribution(current, values, weight, _opened(residual, current)))
        return partial(self._end, current, values, started_s, began, sending_s)

    def _contribution(
        self, current: Round, values: torch.Tensor, weight: float, residual: Residual | None
    ) -> Contribution:
        """What this member brings, and what says the epoch that it is ready to go by next.

        Epochs change in rounds among all, so in those alone a successor is agreed on.
        """

        def ready() -> int:
            return max(self.plans.successor, current.epoch) if current.among_all else current.epoch

        def confirmed() -> int:
            return max(self.plans.confirmed, current.epoch) if current.among_all else current.epoch

        fixed = self._overlaps.known
        if fixed:
            successor = ready()
            ready, confirmed = (lambda: successor), (lambda: current.epoch)
        return Contribution(values, weight, ready, confirmed, fixed, self._overlaps.asked, residual)

    def _end(
        self, current: Round, values: torch.Tensor, started_s: float, began: float, sending_s: float
    ) -> RoundResult:
        deadline = time.monotonic() + self.settings.timeout_s
        with record_function("sync.wait"):
            self._await_end(current, deadline)
            if self._progress.failure is None:
                self._rounds.await_room(current, deadline - time.monotonic())
        outcome, (slice_,) = current.reduction.outcome, _of_all(current)
        tally = current.tally(began, self.outbox.sending_s() - sending_s)
        duplicated = current.reduction.duplicated.bit_count()
        with self._progress.changed:
            if current.among_all:
                assert outcome.agreed is not None
                self.plans.agree(current.epoch, outcome.agreed)
            self._overlaps.known = self._overlaps.known or outcome.overlapped
            self._rounds.end(current)
            self.swaps.follow()
            self._progress.changed.notify_all()
        return RoundResult(
            tensor=values,
            round=current.number,
            epoch=current.epoch,
            whole=current.among_all,
            started_s=started_s,
            finished_s=started_s + time.monotonic() - began,
            lost=outcome.lost.bit_count(),
            duplicated=duplicated,
            slices=(slice_,),
            tally=tally,
        )

    def _await_turn(self, shape: Shape, deadline: float) -> int:
        """Wait until the next round may begin; the epoch it goes by."""
        rounds = self._rounds
        while True:
            self._progress.check()
            number = rounds.number + 1
            if self.swaps.begins(number):
                if rounds.number == rounds.finished:
                    return self.plans.agreed
                plan = rounds.beside(shape)
                if plan is not None and self.swaps.epoch(number, plan.epoch) == plan.epoch:
                    return plan.epoch
            if (left := deadline - time.monotonic()) <= 0:
                if awaited := self.swaps.awaited():
                    raise SyncError(f"round {number}: out of time, waiting for {awaited}", rule="timeout", round=number)
                assert rounds.current is not None
                raise _out_of_time(rounds.current)
            self._progress.changed.wait(left)

    def _await_end(self, current: Round, deadline: float) -> None:
        suspect_at = time.monotonic() + self.suspect_s
        with self._progress.changed:
            while not current.over:
                self._progress.check()
                if self._on_lost is None and self._presence.gone:
                    missing = current.missing()
                    peer = self._presence.blocking(missing, current.plan, self.settings.member)
                    if peer is not None:
                        raise SyncError(
                            f"{current}: {peer} is gone ({self._presence.gone[peer]}); it owed {missing[peer]}",
                            rule="peer-lost",
                            member=peer,
                            round=current.number,
                            epoch=current.epoch,
                        )
                if (left := deadline - time.monotonic()) <= 0:
                    raise _out_of_time(current)
                if self._on_lost is not None and time.monotonic() >= suspect_at:
                    suspect_at = float("inf")
                    for peer, owed in current.missing().items():
                        self._on_lost(Loss(peer, f"{current}: it owes {owed}", broken=False))
                self._progress.changed.wait(min(left, max(suspect_at - time.monotonic(), 0)))

    # -- what a listener calls -----------------------------------------------------------------------------------

    def receiver(self, hello: Greeting) -> ChunkReceiver:
        """What takes the frames of a peer; FrameError when it is no member."""
        if hello.member not in self.members or hello.generation != self.settings.generation:
            raise FrameError(
                f"{hello.member!r} is no member of generation {hello.generation}",
                rule="unknown-member",
                member=hello.member,
                epoch=hello.generation,
            )
        return self._receiver

    def serve(self, connection: socket.socket) -> None:
        """Agree with a plan's root on when it takes force: members of a static run ask each other for nothing else."""
        self.swaps.serve(SwapConnection(connection, self.settings.timeout_s))

    # -- ends ----------------------------------------------------------------------------------------------------

    def freeze(self, error: SyncError) -> tuple[int, list[MeanSlice]]:
        """End with `error`, and let nothing more become final; the round that is on or was last, and what is there."""
        self.fail(error)
        with self._progress.changed:
            return self._rounds.freeze()

    def fail(self, error: SyncError) -> None:
        """End the round that is on, and every later one, with an error; the first one counts."""
        self._progress.fail(error)

    def on_failure(self, call: Callable[[SyncError], None]) -> None:
        """Have `call` called with the error that ends all rounds, on the thread that brings it."""
        self._progress.on_failure(call)

    def drain(self) -> None:
        """Wait until the peers have read all that was sent to them, then close the connections to them. SyncError that
        names those who had not within the settings' time, unless others decide what becomes of who is lost."""

        def await_channel(channel: int, timeout_s: float) -> None:
            with self._progress.changed:
                self._progress.changed.wait_for(
                    lambda: self._presence.quiet(channel) or self._progress.failure, max(timeout_s, 0)
                )
                self._presence.drain(channel)

        late = self.outbox.drain(self.settings.timeout_s, await_channel)
        if late and self._on_lost is None:
            raise SyncError(
                f"{self.settings.member} left after round {self.finished}, epoch {self.plans.agreed}: "
                f"{', '.join(late)} had not read all that was sent there within {self.settings.timeout_s:g} s",
                rule="unread",
                round=self.finished,
                epoch=self.plans.agreed,
            )

    def close(self) -> None:
        """Close the connections to peers at once, and let go of who waits."""
        self.fail(SyncError("the session is closed"))
        self._progress.started.set()
        self.swaps.close()
        self.outbox.close()

    def _undelivered(self, peer: str, reason: str) -> None:
        if self._on_lost is not None:
            if self._progress.failure is None:
                self._on_lost(Loss(peer, f"can't send to it: {reason}"))
            return
        where = f"round {self._rounds.number}, epoch {self.plans.agreed}"
        self.fail(
            SyncError(
                f"{where}: can't send to {peer}: {reason}",
                rule="not-delivered",
                member=peer,
                round=self._rounds.number,
                epoch=self.plans.agreed,
            )
        )


@dataclass(slots=True)
class _Overlaps:
    """Whether this member has `asked` to overlap rounds, and whether all members know that some member does."""

    asked: bool = False
    known: bool = False


def _opened(residual: Residual | None, current: Round) -> Residual | None:
    """The residual, with room for this round's tensor, if there is anything to encode or to pay."""
    if residual is None or (not current.reduction.role.encodes and residual.values is None):
        return None
    residual.open(current.shape[0])
    return residual


def _of_all(current: Round) -> tuple[MeanSlice]:
    """Whose updates the means of a round without losses are of."""
    part = current.reduction.chunk(0).mean
    assert part is not None
    return (MeanSlice(0, current.shape[0], tuple(current.reduction.names(part.contributors)), part.weight),)


def _out_of_time(current: Round) -> SyncError:
    missing = ", ".join(f"{peer} ({owed})" for peer, owed in sorted(current.missing().items()))
    return SyncError(
        f"{current}: out of time, waiting for {missing}",
        rule="timeout",
        member=min(current.missing(), default=None),
        round=current.number,
        epoch=current.epoch,
    )
