"""All-reduce while members come and go: one group for each generation of members.

    generation 0:  a b c d    rounds 1 2 3 4 5 .
                                              c dies in round 6: Abort, Holding from a, b and d, Reconfigure
    generation 4:  a b d                      6' 7 8 9
                                                      c is back: Prepare with c, agreed on like any plan
    generation 5:  a b c d                              10 11 ...

Each generation has connections and sums of its own, so that no frame of an earlier generation can reach it. The round
in which a member was lost is recovered (see recovery.py). A static run has one AllReduceGroup and no ElasticGroup.
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
from testbed.protocol import Abort, ControlMessage, Holding, Lost, MeanSlice, Reconfigure, Rejoin, Renew, Unreached
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
from testbed.sync.allreduce.recovery import (
    Attempt,
    FinishedRound,
    RecoveryOrders,
    Unfetched,
    orders_for,
    recover,
    spreading_pairs,
)
from testbed.sync.allreduce.round import RoundResult
from testbed.sync.checkpoint import Stateful
from testbed.sync.codecs import Residual
from testbed.sync.codecs.codec import bytes_of
from testbed.sync.errors import FrameError, Halted, SyncError
from testbed.sync.transport import Greeting, TransportSettings

#: The number of remembered rounds: enough to include the slow phase of a trace, or of a member that evaluates.
REMEMBERED = 32
#: The fewest rounds from which a timeout is derived. The first rounds have fresh connections, and steps that compile.
NEEDED = 3
#: The factor on the longest round: a path whose rate drops to an eighth is slow, not broken.
SLACK = 8.0
#: The factor on the longest round after which a member looks which peers it can reach, and the largest part of the
#: round's timeout for that wait. A look costs few packets a peer.
LOOK_SLACK, LOOK_PART = 2.0, 0.25
#: The shortest timeout in seconds. Rounds may take milliseconds, but the machine's scheduler may delay one by a second.
LEAST_S = 3.0
#: Seconds between two requests for the state that a new member starts from, while its source has not packed it yet.
ASK_AGAIN_S = 0.1


class AdaptiveTimeout:
    """The wait in a round before silent peers are reported to the controller, derived from recent rounds' durations.

    Args:
        most_s: The longest timeout: the time after which the round fails.
    """

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._took: deque[float] = deque(maxlen=REMEMBERED)

    def note(self, seconds: float) -> None:
        """Record the duration of a round."""
        self._took.append(seconds)

    @property
    def seconds(self) -> float:
        """SLACK times the longest remembered round, at least LEAST_S; `most_s` while too few rounds are known."""
        if len(self._took) < NEEDED:
            return self._most_s
        return min(max(SLACK * max(self._took), LEAST_S), self._most_s)

    @property
    def look_s(self) -> float:
        """The wait in a round before a look which peers can be reached: at most LOOK_PART of `most_s`."""
        if len(self._took) < NEEDED:
            return LOOK_PART * self._most_s
        return min(max(LOOK_SLACK * max(self._took), LEAST_S), LOOK_PART * self._most_s)


class ElasticGroup:
    """A member's groups, and the round that it is in.

    A lost member does not end a round: this member reports the loss, and waits for the controller's decision.

    Any thread may call the methods, except `begin` and the function that it returns, which belong to one caller each.

    Args:
        plan: The first plan.
        after_round: The round before the first one.
        reproducible: Fix the order of additions.
        source: The member whose state this member starts from, see handover.py; empty if this member begins with the
            others.
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
        #: The newest report of each loss (generation, peer, broken), and the last completed round at that time. A
        #: recovery drops those of generations that are over.
        self._losses: dict[tuple[int, str, bool], tuple[int, Lost]] = {}
        self._said_waiting = False  # the controller was told in this round that this member waits for others
        self._aborted: Abort | None = None
        self._orders: RecoveryOrders | None = None
        self._attempt: Attempt | None = None
        self._last = FinishedRound(after_round, (), torch.empty(0, dtype=torch.float32, device="cpu"))
        self._failure: SyncError | None = None
        self._timeout = AdaptiveTimeout(settings.timeout_s)
        first_round = None if source else after_round
        self._generations = Generations(
            plan, settings, roster, first_round, reproducible, self._report_lost, self._report_unreached
        )

    @property
    def current(self) -> AllReduceGroup:
        """The group of the generation in force."""
        return self._generations.current

    @property
    def finished(self) -> int:
        """The number of the last completed round."""
        return self._last.number

    def rejoin(self) -> list[ControlMessage]:
        """Return this member's state for a controller that restarted and does not know it.

        The losses that this member has reported since its last round follow: each is reported once, and the report may
        have been lost with the controller.
        """
        with self._changed:
            generations = self._generations
            state = Rejoin(
                member=self._settings.member,
                plan=self.current.plan.to_json(),
                roster=dict(generations.roster),
                round=self.finished,
                aborted=self._aborted is not None,
                newest=max(generations.newest, self._aborted.epoch if self._aborted else 0),
            )
            losses = [lost for after, lost in self._losses.values() if after == self.finished]
            return [state, *(lost for lost in losses if lost.generation >= generations.epoch)]

    def prepare(self, plan: Plan, roster: Roster, source: str) -> Callable[[], None]:
        """Keep a plan beside the one in force. A plan for other members begins another generation.

        That generation comes into force like any plan: when all members of the current one have announced in a round
        that they hold it.

        Args:
            plan: The plan.
            roster: The address of each member of the plan, if the members change.
            source: The member whose state a new member starts from.

        Returns:
            A function that connects to the plan's next hops and holds it.
        """
        if plan.members == self.current.members or not roster:
            return self.current.prepare(plan, roster, source)
        return partial(self._prepare_generation, plan, roster, source)

    def _prepare_generation(self, plan: Plan, roster: Roster, source: str) -> None:
        if missing := sorted(set(plan.members) - set(roster)):
            raise SyncError(
                f"epoch {plan.epoch}: the controller sent no address of {', '.join(missing)}",
                rule="no-address",
                epoch=plan.epoch,
                given=missing,
            )
        group = self._generations.make(plan, roster, None)
        with self._changed:
            current = self.current
            follows = self._failure is None and plan.epoch > current.plans.newest
            if follows:
                self._generations.add(group, roster, source)
                self._changed.notify_all()
        if not follows:  # nobody else would close its connections
            group.close()
            raise SyncError(
                f"epoch {plan.epoch}: while its connections were made, members were lost or this member ended",
                rule="outdated",
                epoch=plan.epoch,
            )
        group.hold(plan)
        current.plans.promise(plan.epoch)

    def share(self, parts: Mapping[str, Stateful]) -> None:
        """Set the parts of this member's state. A member that joins later fetches their state from its source.

        Raises:
            SyncError: The state can't be fetched.
            Stopped: The controller told this member to leave.
        """
        group, given_up = self.current, threading.Event()
        group.on_failure(lambda error: given_up.set())

        def ask(source: str, most_bytes: int) -> FetchAnswer:
            if source not in self._generations.roster:
                raise SyncError(
                    f"the controller sent no address of {source}, which is to hand over its state",
                    rule="no-address",
                    member=source,
                )
            address = self._generations.roster[source]
            request = FetchRequest(Wanted.STATE, self._generations.epoch)
            while True:
                try:
                    return fetch(source, address, self._settings, request, most_bytes, given_up)
                except SyncError as error:  # not packed yet: members may take steps for longer than a round's timeout
                    if error.rule != "refused" or given_up.wait(ASK_AGAIN_S):
                        raise

        try:
            number = self.handover.share(parts, ask)
        except SyncError:
            group.check()  # the fetch was given up for this failure
            raise
        if number is not None:
            self._last = replace(self._last, number=number)
            self.current.start(number)

    # -- rounds ----------------------------------------------------------------------------------------------------

    def begin(
        self, values: torch.Tensor, weight: float, residual: Residual | None = None, overlaps: bool = False
    ) -> Callable[[], RoundResult]:
        """Prepare a round, see AllReduceGroup.begin. The returned function does all the work: rounds don't overlap."""
        return partial(self._reduce, values, weight, residual)

    def _reduce(self, values: torch.Tensor, weight: float, residual: Residual | None) -> RoundResult:
        started_s, began = time.time(), time.monotonic()
        attempt = Attempt(self.finished + 1, values, weight, residual)
        with self._changed:
            self._attempt = attempt
        barred, result = -1, None
        while result is None:
            group, orders = self._await_group(attempt, barred)
            group.suspect_s, group.look_s = self._timeout.seconds, self._timeout.look_s
            try:
                result = self._try(group, orders, attempt)
            except Halted:
                with self._changed:
                    attempt.again()
            except Unfetched as error:
                barred = group.settings.generation
                self._generations.report_lost(barred, error.loss)
        self._finish(group, attempt, result)
        took_s = time.monotonic() - began
        self._timeout.note(took_s)
        return replace(result, started_s=started_s, finished_s=started_s + took_s)

    def _try(self, group: AllReduceGroup, orders: RecoveryOrders | None, attempt: Attempt) -> RoundResult:
        if attempt.whole or (orders is not None and orders.round == attempt.number and not orders.restart):
            return recover(group, self._generations.roster, orders, attempt, self._changed)
        result = group.begin(attempt.values, attempt.weight, attempt.begin())()
        attempt.done()
        return result

    def _await_group(self, attempt: Attempt, barred: int) -> tuple[AllReduceGroup, RecoveryOrders | None]:
        """Wait for a generation other than `barred`. Returns its group, and the orders for an interrupted round."""
        timeout_s = self._settings.timeout_s
        with self._changed:
            ready = self._changed.wait_for(
                lambda: self._failure or (self._aborted is None and self._generations.epoch != barred), timeout_s
            )
            if self._failure is not None:
                raise self._failure
            if not ready:
                why = self._aborted.why if self._aborted else "the means of other members can't be fetched"
                where = f"round {attempt.number}, epoch {self._generations.epoch}"
                silence = f"the controller sent no list of survivors within {timeout_s:g} s"
                raise SyncError(
                    f"{where}: {why}; {silence}", rule="timeout", round=attempt.number, epoch=self._generations.epoch
                )
            return self.current, self._orders

    def _finish(self, group: AllReduceGroup, attempt: Attempt, result: RoundResult) -> None:
        finished = attempt.finished_round(result.slices)
        if self._said_waiting:  # the report of the round may come much later, and others would be blamed until then
            self._said_waiting = False
            self._tell(Renew(self._settings.member, attempt.number))
        with self._changed:
            self._last, self._attempt = finished, None
            if group is self.current and self._aborted is None:
                source = self._generations.advance(attempt.number)
                if source is not None:
                    self._orders = None
                    self.handover.expect(self._generations.epoch if source == self._settings.member else None)
            self._changed.notify_all()

    # -- a member is lost --------------------------------------------------------------------------------------------

    def abort(self, message: Abort) -> None:
        """End the round, accept no more means, and tell the controller which elements are final here."""
        with self._changed:
            attempt = self._attempt
            if self._aborted is None:
                number, finals = self.current.freeze(Halted(f"epoch {self._generations.epoch}: {message.why}"))
                if attempt is not None and attempt.number == number:
                    attempt.absorb(finals)
            self._aborted = message
            member, epoch = self._settings.member, message.epoch
            if attempt is None:
                holding = Holding(member, epoch, self.finished, over=True)
            elif attempt.whole:
                holding = Holding(member, epoch, attempt.number, over=True)
            else:
                holding = Holding(member, epoch, attempt.number, False, attempt.elements, attempt.final)
        self._tell(holding)

    def reconfigure(self, message: Reconfigure) -> None:
        """Replace the aborted generation by one of the members that are left, and recover its round.

        Raises:
            PlanError: The message's plan is invalid.
        """
        plan = Plan.from_json(message.plan)
        member = self._settings.member
        orders = orders_for(member, message.holdings, spreading_pairs(plan))
        group = self._generations.make(plan, message.roster, orders.round - orders.reduces)
        with self._changed:
            if self._failure is not None or self._aborted is None or self._aborted.epoch > plan.epoch:
                self._generations.retire(group, drain=False)  # this member ended, or another one was lost meanwhile
            else:
                self._generations.replace(group, message.roster)
                self._losses = {key: loss for key, loss in self._losses.items() if key[0] >= plan.epoch}
                self._orders, self._aborted = orders, None
            self._changed.notify_all()

    def _report_lost(self, epoch: int, loss: Loss) -> None:
        """Report a loss to the controller; each broken connection only once."""
        key = epoch, loss.peer, loss.broken
        lost = Lost(self._settings.member, loss.peer, brief(loss.why), epoch, loss.broken)
        with self._changed:
            if loss.broken and key in self._losses:
                return
            self._losses[key] = self.finished, lost
        self._said_waiting |= not loss.broken
        self._tell(lost)

    def _report_unreached(self, epoch: int, peers: tuple[str, ...]) -> None:
        self._said_waiting |= bool(peers)
        self._tell(Unreached(self._settings.member, peers, epoch))

    # -- called by the Listener ----------------------------------------------------------------------------------------

    def receiver(self, hello: Greeting) -> ChunkReceiver:
        """Return the receiver of a peer's frames. Waits for a generation that this member does not know yet.

        Raises:
            FrameError: The generation or the member does not exist.
        """
        generations, epoch = self._generations, hello.generation

        def known() -> bool:
            return bool(generations.find(epoch) or self._failure or epoch < generations.epoch)

        with self._changed:
            self._changed.wait_for(known, self._settings.timeout_s)
            group = generations.find(epoch)
        if group is None:
            raise FrameError(
                f"{hello.member} connected for generation {epoch}, which does not exist here",
                rule="unknown-generation",
                member=hello.member,
                given=epoch,
            )
        return group.receiver(hello)

    def serve(self, connection: socket.socket) -> None:
        """Answer a peer's requests for means or for the state."""
        member, timeout_s = self._settings.member, self._settings.timeout_s
        connection.settimeout(timeout_s)
        while (request := receive_request(connection)) is not None:
            means = request.what is Wanted.MEANS
            # Half the timeout: a member that has no state yet says so before the peer gives it up.
            send_answer(
                connection, self._means(request) if means else self.handover.answer(member, request, timeout_s / 2)
            )

    def _means(self, request: FetchRequest) -> FetchAnswer:
        def settled() -> bool:
            outdated = request.epoch < self._generations.epoch  # the peer asks again in the new generation
            return bool(outdated or self._failure or self._held(request))

        with self._changed:
            self._changed.wait_for(settled, self._settings.timeout_s)
            held = self._held(request)
        if held is None:
            span = f"[{request.start}, {request.stop}) of round {request.round}"
            return refusal(f"{self._settings.member} does not hold {span}")
        slices, means = held
        parts = tuple(part for part in slices if part.start < request.stop and request.start < part.stop)
        return FetchAnswer(MeansNote(parts), memoryview(bytes(bytes_of(means))))

    def _held(self, request: FetchRequest) -> tuple[tuple[MeanSlice, ...], torch.Tensor] | None:
        """Return the requested means and their slices, or None while this member does not hold them."""
        attempt, last = self._attempt, self._last
        if attempt is not None and attempt.number == request.round:
            means = attempt.means(request.start, request.stop)
            return None if means is None else (attempt.slices, means)
        if last.number == request.round and last.slices:  # a member that just joined has no means of the round before
            return last.slices, last.means[request.start : request.stop]
        return None

    # -- end -------------------------------------------------------------------------------------------------------

    def fail(self, error: SyncError) -> None:
        """End the current round and every later one with `error`. Only the first failure counts."""
        with self._changed:
            if self._failure is None:
                self._failure = error
            self.current.fail(error)
            self._changed.notify_all()
        self.handover.close()

    def close(self) -> None:
        """Close the connections at once, and end all waits."""
        self.fail(SyncError("the session is closed"))
        self._generations.close()
