"""All-reduce over plans, among the members of one generation.

The caller's thread adds this member's values. One thread per connection adds peers' chunks, and passes them on.

    round k      own values ----- sums ----- means ------- over
    round k+1                     |     own values ----- sums ...      begins with the first mean of round k,
    round k+2                            before it is over: |          and once round k-1 is over
                                                            not yet

The first mean of round k proves that every member has begun round k. If any member overlaps rounds, that mean also
tells the epoch of round k+1; otherwise the round's last mean does. (A member announces with its contribution that it
will overlap rounds, and may do so from the next round on, when all members know.) So a peer is at most one round ahead.
Its chunks are added to the next round's sums even before this member begins that round, if some earlier round had a
tensor of that shape; otherwise the connection waits. Waiting is safe only if all frames of the current rounds from that
peer were queued before the frame that waits. That is true if a round begins after the last one is over. Hence a round
may begin earlier only if an earlier round had its shape: then all members take its frames at once.

Groups of members may be ahead of each other, up to the next round among all. Their connections to members of other
groups wait for that round in the same way, and rounds inside groups do not overlap. A plan need not wait for the next
round among all to come into force, see early_swaps.py.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial

import torch
from torch.profiler import record_function

from testbed.plan import Plan
from testbed.protocol import MeanSlice
from testbed.sync.allreduce.chunk_codec import ChunkHeaderFormat
from testbed.sync.allreduce.early_swaps import EarlySwaps, SwapConnection
from testbed.sync.allreduce.held_plans import HeldPlans
from testbed.sync.allreduce.receiver import ChunkReceiver, Loss, PeerConnections
from testbed.sync.allreduce.reduction import Contribution
from testbed.sync.allreduce.role import route_table
from testbed.sync.allreduce.round import Round, RoundResult
from testbed.sync.allreduce.rounds import RoundProgress, Rounds, Shape
from testbed.sync.codecs import Residual
from testbed.sync.errors import FrameError, SyncError
from testbed.sync.executor import weakly
from testbed.sync.transport import Greeting, Outbox, TransportSettings, sockets

#: In a group of at most LOOKED members a look tries to reach all of them, else this member's neighbours in the plan.
LOOKED = 64

#: The pause between two steps of a look, in seconds.
_STEP_S = 0.1

#: The address at which each member listens.
Roster = Mapping[str, tuple[str, int]]


class AllReduceGroup:
    """One member's part in the all-reduce among the members of one generation.

    Any thread may call the methods, except `begin` and the function that it returns, which belong to one caller each.

    Attributes:
        settings: How this member connects to its peers.
        members: The names of the generation's members.
        plans: The plans that this member holds.
        outbox: Sends frames to peers.
        suspect_s: Seconds after which a round reports the peers that it still waits for to `on_lost`.
        look_s: Seconds after which a round looks which peers can be reached; then again each `look_s`.
        swaps: This member's part in early commits.
    """

    def __init__(
        self,
        plan: Plan,
        settings: TransportSettings,
        roster: Roster,
        after_round: int | None = 0,
        reproducible: bool = False,
        on_lost: Callable[[Loss], None] | None = None,
        on_unreached: Callable[[tuple[str, ...]], None] | None = None,
        make_outbox: Callable[..., Outbox] = Outbox,
    ) -> None:
        """Connect to the next hops of the first plan.

        Args:
            plan: The generation's first plan.
            settings: How this member connects to its peers.
            roster: The address of each member.
            after_round: The round before the first one; None if `start` will tell it.
            reproducible: Fix the order of additions.
            on_lost: Called with a lost peer, and with one that a round has waited for longer than `suspect_s`; the
                round goes on waiting. None: a lost peer ends the round.
            on_unreached: Called with the peers that a look did not reach; with none, if it reached all.
            make_outbox: Makes the outbox; takes the arguments of Outbox.

        Raises:
            SyncError: The settings' congestion control is not available, or no other thread can be started.
        """
        if settings.congestion:
            sockets.check_congestion(settings.congestion)
        headers = ChunkHeaderFormat(len(plan.members))
        self.settings = settings
        self.members = plan.members
        self.plans = HeldPlans(settings.member, plan)
        self.outbox = make_outbox(settings, headers.size, roster, weakly(self._undelivered))
        self.suspect_s = self.look_s = float("inf")
        self._roster = roster
        self._on_lost = on_lost
        self._on_unreached = on_unreached
        self._overlaps_announced = False  # this member will overlap rounds
        self._overlaps_known = False  # all members know that some member does
        self._progress = RoundProgress()
        self._connections = PeerConnections(settings.streams)
        self._rounds = Rounds(self.plans, self.outbox, headers, after_round or 0, reproducible, self._progress.notify)
        self._progress.on_failure(self._give_up)
        self.swaps = EarlySwaps(settings, roster, self.plans, self._rounds, self._progress)
        self._receiver = ChunkReceiver(
            headers, self.plans, self._rounds, self._connections, self._progress, self.outbox, on_lost
        )
        if after_round is not None:
            self._progress.started.set()
        table = route_table(plan, settings.member)
        try:
            self.outbox.connect(table)
            self.outbox.follow(table)
        except BaseException:
            self.outbox.close()
            raise

    @property
    def current(self) -> AllReduceGroup:
        """This group: the only one of a static run."""
        return self

    @property
    def plan(self) -> Plan:
        """The plan that the next round uses."""
        return self.plans.in_force

    @property
    def finished(self) -> int:
        """The number of the last completed round."""
        return self._rounds.finished

    def start(self, after_round: int) -> None:
        """Begin with the round that follows `after_round`, if the group was made without one. Frames wait for this."""
        with self._progress.changed:
            self._rounds.restart(after_round)
        self._progress.started.set()

    def prepare(self, plan: Plan, roster: Roster, source: str) -> Callable[[], None]:
        """Keep a newer plan for the same members beside the one in force; `roster` and `source` are unused.

        Returns:
            A function that holds the plan, see `hold`.

        Raises:
            PlanError: The plan can't follow the kept ones.
        """
        self.plans.keep(plan)
        return partial(self.hold, plan)

    def hold(self, plan: Plan) -> None:
        """Connect to the next hops of a kept plan. Rounds that begin later announce that this member holds it.

        Raises:
            SyncError: A next hop can't be reached; names it.
        """
        deadline = time.monotonic() + self.settings.timeout_s
        for sender in self.outbox.connect(route_table(plan, self.settings.member)):
            if not sender.await_connection(deadline - time.monotonic()):
                raise SyncError(
                    f"epoch {plan.epoch}: no connection to {sender.peer}: {sender.failure or 'timed out'}",
                    rule="no-connection",
                    member=sender.peer,
                    epoch=plan.epoch,
                )
        self.plans.hold(plan.epoch)

    # -- rounds --------------------------------------------------------------------------------------------------

    def begin(
        self, values: torch.Tensor, weight: float, residual: Residual | None = None, overlaps: bool = False
    ) -> Callable[[], RoundResult]:
        """Begin to replace `values` by the weighted mean over the members of the round.

        Args:
            values: The member's values, 1-dimensional, on the CPU.
            weight: The weight of these values.
            residual: Error-feedback residual, for float32 alone; with one, chunks are encoded as the plan says.
            overlaps: Announce that a later round may begin before the previous one ends. This is possible from the
                next round on.

        Returns:
            A function that waits until the round is over. Rounds end in their order.

        Raises:
            SyncError: The round can't begin, or, raised by the returned function, can't be finished; names the missing
                peers, the epoch and the round. Values of chunks that were not final are unchanged.
            ValueError: The residual is that of a tensor of another size. No round has begun.
        """
        if residual is not None:
            residual.check(len(values))
        started_s, began, sending_s = time.time(), time.monotonic(), self.outbox.sending_s()
        followed = self._rounds.current
        with self._progress.changed:
            epoch = self._await_start((len(values), values.dtype), began + self.settings.timeout_s)
            current = self._rounds.begin(epoch, values)
            self._progress.changed.notify_all()
        if followed is None or followed.epoch != current.epoch:
            self.outbox.follow(route_table(current.plan, self.settings.member))
        with record_function("sync.add_own"):
            self._overlaps_announced = self._overlaps_announced or overlaps
            current.start(self._contribution(current, values, weight, _opened(residual, current)))
        return partial(self._end, current, values, started_s, began, sending_s)

    def _contribution(
        self, current: Round, values: torch.Tensor, weight: float, residual: Residual | None
    ) -> Contribution:
        """Return this member's contribution, which also says the epoch that the member is ready to use next.

        Members agree on another epoch only in rounds among all, so only those announce a successor.
        """

        epoch, among_all = current.epoch, current.among_all  # not the round, which holds the contribution

        def ready() -> int:
            return max(self.plans.successor, epoch) if among_all else epoch

        def confirmed() -> int:
            return max(self.plans.confirmed, epoch) if among_all else epoch

        fixed = self._overlaps_known
        if fixed:
            successor = ready()
            ready, confirmed = (lambda: successor), (lambda: epoch)
        return Contribution(values, weight, ready, confirmed, fixed, self._overlaps_announced, residual)

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
            self._overlaps_known = self._overlaps_known or outcome.overlapped
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

    def _await_start(self, shape: Shape, deadline: float) -> int:
        """Wait until the next round may begin. Return the epoch that it uses."""
        rounds = self._rounds
        while True:
            self._progress.check()
            number = rounds.number + 1
            if self.swaps.agreement.may_begin(number):
                if rounds.number == rounds.finished:
                    return self.plans.agreed
                plan = rounds.beside(shape)
                if plan is not None and self.swaps.agreement.epoch(number, plan.epoch) == plan.epoch:
                    return plan.epoch
            if (left := deadline - time.monotonic()) <= 0:
                if decisions := self.swaps.agreement.pending:
                    raise SyncError(f"round {number}: timed out, waiting for {decisions}", rule="timeout", round=number)
                assert rounds.current is not None
                raise _out_of_time(rounds.current)
            self._progress.changed.wait(left)

    def report_wait(self, peer: str, why: str) -> None:
        """Report to `on_lost` that this member waits for a peer."""
        if self._on_lost is not None:
            self._on_lost(Loss(peer, why, broken=False))

    def _await_end(self, current: Round, deadline: float) -> None:
        began = time.monotonic()
        suspect_at, look_at = began + self.suspect_s, began + self.look_s
        # This thread does not hold the lock of the rounds here: `on_lost` takes the engine's lock, and the thread that
        # aborts a round takes the lock of the rounds while it holds the engine's lock.
        while not self._await_over(current, deadline, min(suspect_at, look_at)):
            if time.monotonic() >= suspect_at:
                suspect_at = float("inf")
                for peer, data in current.missing().items():
                    self.report_wait(peer, f"{current}: still waiting for {data} from {peer}")
            if time.monotonic() >= look_at:
                if not self._look(current, deadline):
                    return
                look_at = time.monotonic() + self.look_s

    def _look(self, current: Round, deadline: float) -> bool:
        """Report which peers can't be reached. Returns False if the round was over before that.

        Which members reach each other tells where they have fallen apart, also where the plan does not join them.
        """
        until = min(time.monotonic() + sockets.REACHED_S, deadline)
        member = self.settings.member
        peers = {*self.members} - {member} if len(self.members) <= LOOKED else current.plan.neighbours(member)
        try:
            check = sockets.ReachCheck({peer: self._roster[peer] for peer in peers})
        except OSError:  # no more files may be opened, so that nothing is known
            return True
        with closing(check):
            while not check.step() and time.monotonic() < until:
                if self._await_over(current, deadline, time.monotonic() + _STEP_S):
                    return False
            if self._on_unreached is not None:
                self._on_unreached(tuple(sorted(check.unreached)))
        return True

    def _await_over(self, current: Round, deadline: float, suspect_at: float) -> bool:
        """Wait until a round is over. Returns False if it is not over at `suspect_at`."""
        with self._progress.changed:
            while not current.over:
                self._progress.check()
                if self._on_lost is None and self._connections.gone:
                    missing = current.missing()
                    peer = self._connections.blocking(missing, current.plan, self.settings.member)
                    if peer is not None:
                        why = self._connections.gone[peer]
                        raise current.error(f"{peer} is gone ({why}) before {missing[peer]} came", "peer-lost", peer)
                if (left := deadline - time.monotonic()) <= 0:
                    raise _out_of_time(current)
                if time.monotonic() >= suspect_at:
                    return False
                self._progress.changed.wait(min(left, max(suspect_at - time.monotonic(), 0)))
        return True

    def _give_up(self, error: SyncError) -> None:
        """End the wait for the frames of an earlier round: after a failure nothing ensures that they leave."""
        with self._progress.changed:
            self._rounds.give_up()

    # -- called by the Listener ----------------------------------------------------------------------------------

    def receiver(self, hello: Greeting) -> ChunkReceiver:
        """Return the receiver of a peer's frames.

        Raises:
            FrameError: The peer is not a member of this generation.
        """
        if hello.member not in self.members or hello.generation != self.settings.generation:
            raise FrameError(
                f"{hello.member!r} is not a member of generation {hello.generation}",
                rule="unknown-member",
                member=hello.member,
                epoch=hello.generation,
            )
        return self._receiver

    def serve(self, connection: socket.socket) -> None:
        """Take part in an early commit: the only request that members of a static run make to each other."""
        self.swaps.serve(SwapConnection(connection, self.settings.timeout_s))

    # -- end -----------------------------------------------------------------------------------------------------

    def freeze(self, error: SyncError) -> tuple[int, tuple[MeanSlice, ...]]:
        """End with `error`, and accept no more means. Returns the newest round's number and its final slices."""
        self.fail(error)
        with self._progress.changed:
            return self._rounds.freeze()

    def fail(self, error: SyncError) -> None:
        """End the current round and every later one with `error`. Only the first failure counts."""
        self._progress.fail(error)

    def check(self) -> None:
        """Raise the error that ends all rounds, if there is one."""
        self._progress.check()

    def on_failure(self, call: Callable[[SyncError], None]) -> None:
        """Call `call` with the error that ends all rounds, on the thread that reports it."""
        self._progress.on_failure(call)

    def drain(self) -> None:
        """Wait until the peers have read all frames, then close the connections.

        Raises:
            SyncError: Some peers did not read everything in time. Not raised with `on_lost`.
        """

        def await_channel(channel: int, timeout_s: float) -> None:
            with self._progress.changed:
                self._progress.changed.wait_for(
                    lambda: self._connections.is_idle(channel) or self._progress.failure, max(timeout_s, 0)
                )
                self._connections.refuse(channel)

        late = self.outbox.drain(self.settings.timeout_s, await_channel)
        if late and self._on_lost is None:
            raise SyncError(
                f"{self.settings.member} left after round {self.finished}, epoch {self.plans.agreed}: "
                f"{', '.join(late)} did not read all frames within {self.settings.timeout_s:g} s",
                rule="unread",
                round=self.finished,
                epoch=self.plans.agreed,
            )

    def close(self) -> None:
        """Close the connections at once, and end all waits."""
        self.fail(SyncError("the session is closed"))
        self._progress.started.set()
        self.swaps.close()
        self.outbox.close()
        with self._progress.changed:
            self._rounds.close()  # a round's contribution holds this group: without this they would keep each other

    def _undelivered(self, peer: str, reason: str) -> None:
        if self._on_lost is not None:
            if self._progress.failure is None:
                self._on_lost(Loss(peer, f"can't send to {peer}: {reason}"))
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


def _opened(residual: Residual | None, current: Round) -> Residual | None:
    """Return the residual, sized for this round's tensor, or None if no chunk is encoded and no residual is left."""
    if residual is None or (not current.reduction.role.encodes and residual.values is None):
        return None
    residual.open(current.shape[0])
    return residual


def _of_all(current: Round) -> tuple[MeanSlice]:
    """Return the only slice of a round without losses."""
    part = current.reduction.chunk(0).mean
    assert part is not None
    return (MeanSlice(0, current.shape[0], tuple(current.reduction.names(part.contributors)), part.weight),)


def _out_of_time(current: Round) -> SyncError:
    missing = sorted(current.missing().items())
    awaited = ", ".join(f"{peer} ({data})" for peer, data in missing)
    remedy = "if it is only slow, lengthen `sync.round_timeout`, `--round-timeout` or, of a process group, `timeout`"
    return current.error(f"timed out, waiting for {awaited}; {remedy}", "timeout", missing[0][0] if missing else None)
