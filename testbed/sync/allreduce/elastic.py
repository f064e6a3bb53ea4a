"""All-reduce over the comings and goings of members: one group for each generation of members.

    generation 0:  a b c d    rounds 1 2 3 4 5 .
                                              c dies in round 6: Abort, Holding from a, b and d, Reconfigure
    generation 4:  a b d                      6' 7 8 9
                                                      c is back: Prepare with c in it, agreed on as any plan is
    generation 5:  a b c d                              10 11 ...

Each generation has connections and sums of its own, so that nothing of the one before can reach it. A round that a
member was lost in is recovered (see recovery.py). A static run has one group alone, and nothing of this.

How long a round may take before something must be wrong, by how long the last ones took. Pure.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch

from testbed.plan import Plan
from testbed.protocol import Abort, ControlMessage, Holding, Lost, MeanSlice, Reconfigure, Rejoin
from testbed.schema import brief
from testbed.sync.allreduce.fetch import (
    FetchAnswer,
    FetchRequest,
    MeansNote,
    Wanted,
    fetch,
    receive_request,
    refusal,
    send_answer,
)
from testbed.sync.allreduce.generations import Generations
from testbed.sync.allreduce.group import AllReduceGroup, Roster
from testbed.sync.allreduce.handover import StateHandover
from testbed.sync.allreduce.receiver import ChunkReceiver, Loss
from testbed.sync.allreduce.recovery import Attempt, Past, RecoveryOrders, Unfetched, orders_for, recover
from testbed.sync.allreduce.round import RoundResult
from testbed.sync.checkpoint import Stateful
from testbed.sync.codecs import Residual
from testbed.sync.codecs.memory import bytes_of
from testbed.sync.errors import FrameError, Halted, SyncError
from testbed.sync.transport import Greeting, TransportSettings

#: Rounds that are remembered: enough to have seen the slow phase of a trace or of a member that evaluates.
REMEMBERED = 32
#: Fewer rounds say nothing: the first ones have fresh connections, and steps that compile.
NEEDED = 3
#: A rate that drops to an eighth is a bad day, not a broken path; what is waited for longer is asked after.
SLACK = 8.0
#: Rounds of milliseconds still share a machine whose scheduler may take a second.
LEAST_S = 3.0


class AdaptiveTimeout:
    """`seconds` to wait in a round before peers are asked after: at most `most_s`, which is also when it has failed."""

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._took: deque[float] = deque(maxlen=REMEMBERED)

    def note(self, seconds: float) -> None:
        """A round took so long."""
        self._took.append(seconds)

    @property
    def seconds(self) -> float:
        """From the longest of the rounds that are remembered."""
        if len(self._took) < NEEDED:
            return self._most_s
        return min(max(SLACK * max(self._took), LEAST_S), self._most_s)


class ElasticGroup:
    """A member's groups, and the round that it is in.

    A member that is lost ends no round: the controller is told, by `tell`, and what it says is waited for. A member
    that comes while the others train begins from the state of `source`, see `handover`.

    Threads: `begin`, and what it returns, belong to one caller each; the rest may be called from any.
    """

    def __init__(
        self,
        plan: Plan,
        settings: TransportSettings,
        roster: Roster,
        tell: Callable[[ControlMessage], None],
        after_round: int = 0,
        reproducible: bool = False,
        source: str = "",
    ) -> None:
        self.handover = StateHandover(source)
        self._settings = settings
        self._tell = tell
        self._changed = threading.Condition()
        self._losses: set[tuple[int, str, bool]] = set()
        self._aborted: Abort | None = None
        self._orders: RecoveryOrders | None = None
        self._attempt: Attempt | None = None
        self._past = Past(after_round, (), torch.empty(0))
        self._failure: SyncError | None = None
        self._timeout = AdaptiveTimeout(settings.timeout_s)
        first_round = None if source else after_round
        self._generations = Generations(plan, settings, roster, first_round, reproducible, self._say_lost)

    @property
    def current(self) -> AllReduceGroup:
        """The group in force."""
        return self._generations.current

    @property
    def finished(self) -> int:
        """The last round that is over."""
        return self._past.number

    def rejoin(self) -> Rejoin:
        """Where this member stands, for a controller that does not know it."""
        with self._changed:
            generations = self._generations
            return Rejoin(
                member=self._settings.member,
                plan=self.current.plan.to_json(),
                roster=dict(generations.roster),
                round=self.finished,
                aborted=self._aborted is not None,
                newest=max(generations.newest, self._aborted.epoch if self._aborted else 0),
            )

    def prepare(self, plan: Plan, roster: Roster, source: str) -> Callable[[], None]:
        """Keep a plan beside the one in force; what it returns holds it, see AllReduceGroup.prepare.

        With one for other members another generation begins. It comes into force as any plan does: when all members of
        this one have said in a round that they hold it.
        """
        if plan.members == self.current.members or not roster:
            return self.current.prepare(plan)
        return partial(self._prepare_generation, plan, roster, source)

    def _prepare_generation(self, plan: Plan, roster: Roster, source: str) -> None:
        if missing := sorted(set(plan.members) - set(roster)):
            raise SyncError(
                f"epoch {plan.epoch}: nobody said where {missing} listen",
                rule="no-address",
                epoch=plan.epoch,
                given=missing,
            )
        group = self._generations.make(plan, roster, None)
        with self._changed:
            current = self.current
            self._generations.add(group, roster, source)
            self._changed.notify_all()
        group.hold(plan)
        current.plans.promise(plan.epoch)

    def share(self, parts: Mapping[str, Stateful]) -> None:
        """Name what makes up this member's state; a member that comes later gets it from another, and takes part from
        the round on that follows the one it is of. SyncError when it can't be had."""

        def ask(source: str, most_bytes: int) -> FetchAnswer:
            if source not in self._generations.roster:
                raise SyncError(
                    f"nobody said where {source} listens, which is to hand over the state",
                    rule="no-address",
                    member=source,
                )
            request = FetchRequest(Wanted.STATE, self._generations.epoch)
            return fetch(source, self._generations.roster[source], self._settings, request, most_bytes)

        number = self.handover.share(parts, ask)
        if number is not None:
            self._past = replace(self._past, number=number)
            self.current.start(number)

    # -- rounds ----------------------------------------------------------------------------------------------------

    def begin(
        self, values: torch.Tensor, weight: float, residual: Residual | None = None, overlaps: bool = False
    ) -> Callable[[], RoundResult]:
        """As AllReduceGroup.begin, but that all is left to what it returns: one round is on at a time."""
        return partial(self._reduce, values, weight, residual)

    def _reduce(self, values: torch.Tensor, weight: float, residual: Residual | None) -> RoundResult:
        started_s, began = time.time(), time.monotonic()
        attempt = Attempt(self.finished + 1, values, weight, residual)
        with self._changed:
            self._attempt = attempt
        barred, result = -1, None
        while result is None:
            group, orders = self._await_group(attempt, barred)
            group.suspect_s = self._timeout.seconds
            try:
                result = self._try(group, orders, attempt)
            except Halted:
                with self._changed:
                    attempt.again()
            except Unfetched as error:
                barred = group.settings.generation
                self._generations.tell_lost(barred, error.loss)
        self._finish(group, attempt, result)
        took_s = time.monotonic() - began
        self._timeout.note(took_s)
        return replace(result, started_s=started_s, finished_s=started_s + took_s)

    def _try(self, group: AllReduceGroup, orders: RecoveryOrders | None, attempt: Attempt) -> RoundResult:
        if attempt.whole or (orders is not None and orders.round == attempt.number and not orders.anew):
            return recover(group, self._generations.roster, orders, attempt, self._changed)
        result = group.begin(attempt.values, attempt.weight, attempt.begin())()
        attempt.done()
        return result

    def _await_group(self, attempt: Attempt, barred: int) -> tuple[AllReduceGroup, RecoveryOrders | None]:
        """The group in force, of another generation than `barred`, and what is to be done about a round in it."""
        timeout_s = self._settings.timeout_s
        with self._changed:
            ready = self._changed.wait_for(
                lambda: self._failure or (self._aborted is None and self._generations.epoch != barred), timeout_s
            )
            if self._failure is not None:
                raise self._failure
            if not ready:
                why = self._aborted.why if self._aborted else "what others hold can't be fetched"
                where = f"round {attempt.number}, epoch {self._generations.epoch}"
                silence = f"the controller has not said within {timeout_s:g} s who is left"
                raise SyncError(
                    f"{where}: {why}; {silence}", rule="timeout", round=attempt.number, epoch=self._generations.epoch
                )
            return self.current, self._orders

    def _finish(self, group: AllReduceGroup, attempt: Attempt, result: RoundResult) -> None:
        past = attempt.past(result.slices)
        with self._changed:
            self._past, self._attempt = past, None
            if group is self.current and self._aborted is None:
                source = self._generations.advance(attempt.number)
                if source is not None:
                    self._orders = None
                    self.handover.expect(self._generations.epoch if source == self._settings.member else None)
            self._changed.notify_all()

    # -- a member is lost --------------------------------------------------------------------------------------------

    def abort(self, message: Abort) -> None:
        """Let nothing more become final, and say what is."""
        with self._changed:
            attempt = self._attempt
            if self._aborted is None:
                number, finals = self.current.freeze(Halted(f"epoch {self._generations.epoch}: {message.why}"))
                if attempt is not None and attempt.number == number:
                    attempt.absorb(finals)
            self._aborted = message
            holding = Holding(
                member=self._settings.member,
                epoch=message.epoch,
                round=self.finished if attempt is None else attempt.number,
                over=attempt is None or attempt.whole,
                elements=0 if attempt is None or attempt.whole else attempt.elements,
                final=() if attempt is None or attempt.whole else attempt.final,
            )
        self._tell(holding)

    def reconfigure(self, message: Reconfigure) -> None:
        """Go on among those who are left. PlanError when the plan is none."""
        plan = Plan.from_json(message.plan)
        orders = orders_for(self._settings.member, message.holdings)
        group = self._generations.make(plan, message.roster, orders.round - orders.reduces)
        with self._changed:
            if self._aborted is None or self._aborted.epoch > plan.epoch:
                self._generations.retire(group, drain=False)  # another member was lost meanwhile
            else:
                self._generations.replace(group, message.roster)
                self._orders, self._aborted = orders, None
            self._changed.notify_all()

    def _say_lost(self, epoch: int, loss: Loss) -> None:
        """Tell the controller, once of each."""
        said = epoch, loss.peer, loss.broken
        if loss.broken and said in self._losses:
            return
        self._losses.add(said)
        self._tell(Lost(self._settings.member, loss.peer, brief(loss.why), epoch, loss.broken))

    # -- what a listener calls -----------------------------------------------------------------------------------------

    def receiver(self, hello: Greeting) -> ChunkReceiver:
        """What takes the frames of a peer, of a generation that this member may have yet to hear of; FrameError when
        there is none."""
        generations, epoch = self._generations, hello.generation

        def known() -> bool:
            return bool(generations.find(epoch) or self._failure or epoch < generations.epoch)

        with self._changed:
            self._changed.wait_for(known, self._settings.timeout_s)
            group = generations.find(epoch)
        if group is None:
            raise FrameError(
                f"{hello.member} greets in generation {epoch}, which is not there",
                rule="unknown-generation",
                member=hello.member,
                given=epoch,
            )
        return group.receiver(hello)

    def serve(self, connection: socket.socket) -> None:
        """Answer a peer that asks for means or for the state."""
        connection.settimeout(self._settings.timeout_s)
        request = receive_request(connection)
        if request.what is Wanted.MEANS:
            send_answer(connection, self._means(request))
        else:
            member, timeout_s = self._settings.member, self._settings.timeout_s
            send_answer(connection, self.handover.answer(member, request, timeout_s))

    def _means(self, request: FetchRequest) -> FetchAnswer:
        with self._changed:
            self._changed.wait_for(
                lambda: self._failure or _held(request, self._attempt, self._past), self._settings.timeout_s
            )
            held = _held(request, self._attempt, self._past)
        if held is None:
            span = f"[{request.start}, {request.stop}) of round {request.round}"
            return refusal(f"{self._settings.member} does not hold {span}")
        slices, means = held
        parts = tuple(part for part in slices if part.start < request.stop and request.start < part.stop)
        return FetchAnswer(MeansNote(parts), memoryview(bytes(bytes_of(means))))

    # -- ends ------------------------------------------------------------------------------------------------------

    def fail(self, error: SyncError) -> None:
        """End the round that is on, and every later one, with an error; the first one counts."""
        with self._changed:
            if self._failure is None:
                self._failure = error
            self.current.fail(error)
            self._changed.notify_all()
        self.handover.close()

    def close(self) -> None:
        """Close the connections to peers at once, and let go of who waits."""
        self.fail(SyncError("the session is closed"))
        self._generations.close()


def _held(
    request: FetchRequest, attempt: Attempt | None, past: Past
) -> tuple[tuple[MeanSlice, ...], torch.Tensor] | None:
    """The means that are asked for, and whose updates they are of; None while they are not there."""
    if attempt is not None and attempt.number == request.round:
        means = attempt.means(request.start, request.stop)
        return None if means is None else (attempt.slices, means)
    if past.number == request.round and past.slices:  # a member that came just now has no means of the round before
        return past.slices, past.means[request.start : request.stop]
    return None
