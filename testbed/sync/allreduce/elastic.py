"""Rounds over the comings and goings of members: one exchange for each era, in which the same members are there.

    era 0:  a b c d    rounds 1 2 3 4 5 .
                                       c dies in round 6: Halt, Holding from a, b and d, Resume
    era 4:  a b d                      6' 7 8 9
                                               c is back: Prepare with c in it, agreed on as any plan is
    era 5:  a b c d                              10 11 ...

Each era has connections and sums of its own, so that nothing of the one before can reach it. A round that a member
was lost in is mended by the rule of atomic rounds: what any member holds final stays as it is, and others fetch it;
what nobody holds is reduced again among those who are left, each slice with its own denominator.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from testbed.plan import Plan
from testbed.protocol import Halt, Holding, Lost, Message, PeerSample, Resume, Slice, slice_of
from testbed.sync.allreduce.attempt import Attempt, Past, joined
from testbed.sync.allreduce.fetch import Answer, Ask, What, fetch, receive_ask, refusal, send_answer
from testbed.sync.allreduce.group import Exchange, Loss
from testbed.sync.allreduce.recovery import Orders, orders_for
from testbed.sync.allreduce.round import Round, Tally
from testbed.sync.allreduce.timeout import Patience
from testbed.sync.buffers import bytes_of
from testbed.sync.codecs import Residual
from testbed.sync.errors import FrameError, Halted, SyncError
from testbed.sync.transport.frame import Greeting
from testbed.sync.transport.sender import CLOSE_S, Way

#: Elements fetched at a time: 1 MiB of float32.
PIECE = 256 * 1024

#: Members by where they listen.
Roster = Mapping[str, tuple[str, int]]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reduced:
    """A round that is over at this member. `slices` say whose updates the means are of, and are all of the round."""

    number: int
    epoch: int
    among_all: bool
    lost: int
    duplicated: int
    tally: Tally
    slices: tuple[Slice, ...]


class Begun(NamedTuple):
    """What is to be reduced, and the round if it is on already."""

    values: torch.Tensor
    weight: float
    residual: Residual | None
    round: Round | None


class Eras:
    """A member's exchanges, the one in force among them, and the round that it is in.

    `way` is how the first era's connections are made; `tell` sends to the controller. In an `elastic` run a member that
    is lost ends no round: the controller is told, and what it says is waited for. `started` is False for a member that
    comes while the others train; it begins with `start`.

    Threads: `begin` and `end`, and `start`, belong to one caller each; the rest may be called from any.
    """

    def __init__(
        self,
        plan: Plan,
        way: Way,
        roster: Roster,
        tell: Callable[[Message], None],
        after_round: int = 0,
        reproducible: bool = False,
        elastic: bool = False,
        started: bool = True,
    ) -> None:
        self._way = way
        self._tell = tell
        self._reproducible = reproducible
        self._elastic = elastic
        self._changed = threading.Condition()
        self._roster = dict(roster)
        self._lost: set[tuple[int, str, bool]] = set()
        self._halted: Halt | None = None
        self._orders: Orders | None = None
        self._attempt: Attempt | None = None
        self._past: Past | None = None
        self._finished = after_round
        self._failure: SyncError | None = None
        self._patience = Patience(way.patience_s)
        self._next: dict[int, tuple[Exchange, str]] = {}
        self._before: Exchange | None = None
        self._retiring: list[threading.Thread] = []
        self._state: tuple[int, Answer] | None = None
        self._source_of: int | None = None
        self._era = plan.epoch
        self._exchange = self._make(plan, roster, after_round, started)

    # -- what is in force ------------------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """The plan that the next round goes by."""
        return self._exchange.plan

    @property
    def members(self) -> tuple[str, ...]:
        """Those of this era."""
        return self._exchange.members

    @property
    def finished(self) -> int:
        """The last round that is over."""
        return self._finished

    def standing(self) -> dict[str, object]:
        """Where this member stands, for a controller that does not know it: see Hello."""
        with self._changed:
            return {
                "plan": self._exchange.plan.to_json(),
                "roster": dict(self._roster),
                "round": self._finished,
                "halted": self._halted is not None,
                "newest": max(self._exchange.newest, self._halted.epoch if self._halted else 0, *self._next, 0),
            }

    def keep(self, plan: Plan) -> None:
        """Keep a plan for the same members beside the one in force; PlanError as Exchange.keep."""
        self._exchange.keep(plan)

    def reach(self, plan: Plan) -> None:
        """Connect to the next hops of a plan that is kept; SyncError if they can't be reached."""
        self._exchange.reach(plan)

    def confirm(self, epoch: int) -> None:
        """All members hold the plan of an epoch."""
        self._exchange.confirm(epoch)

    def prepare(self, plan: Plan, roster: Roster, source: str) -> None:
        """Hold a plan with which another era begins, since it has other members; SyncError when they can't be reached.

        It comes into force as any plan does: when all members of this era have said in a round that they hold it.
        """
        if missing := sorted(set(plan.members) - set(roster)):
            raise SyncError(f"epoch {plan.epoch}: nobody said where {missing} listen")
        exchange = self._make(plan, roster, 0, started=False)
        with self._changed:
            current = self._exchange
            self._next[plan.epoch] = exchange, source
            self._roster |= roster
            self._changed.notify_all()
        exchange.reach(plan)
        current.promise(plan.epoch)

    def start(self, after_round: int) -> None:
        """Take part from the round on that follows `after_round`."""
        self._finished = after_round
        self._exchange.start(after_round)

    # -- rounds ----------------------------------------------------------------------------------------------------

    def begin(
        self, values: torch.Tensor, weight: float, residual: Residual | None = None, overlaps: bool = False
    ) -> Begun:
        """Have `values` (flat, CPU) replaced by the weighted mean of those who take part, by when `end` returns.
        Another round may begin before that if it `overlaps`.

        SyncError when that can't be, also from `end`: it names the peers that were waited for, the epoch and the
        round. In an elastic run all is left to `end`, so that one round is on at a time.
        """
        begun = None
        if not self._elastic:
            begun = self._exchange.begin(values, weight, self._way.patience_s, residual, overlaps)
        return Begun(values, weight, residual, begun)

    def end(self, begun: Begun) -> Reduced:
        """Wait until a round that was begun is over. In the order in which they were."""
        if begun.round is None:
            return self._run(begun.values, begun.weight, begun.residual)
        done = self._exchange.end(begun.round, self._way.patience_s)
        self._finished = done.number
        return _reduced(done, _of_all(done))

    def _run(self, values: torch.Tensor, weight: float, residual: Residual | None) -> Reduced:
        began = time.monotonic()
        attempt = Attempt(self._finished + 1, values, weight, residual)
        with self._changed:
            self._attempt = attempt
        barred, result = -1, None
        while result is None:
            exchange, orders = self._await_exchange(attempt, barred)
            try:
                result = self._try(exchange, orders, attempt, residual)
            except Halted:
                with self._changed:
                    attempt.again()
            except _Unfetched:
                barred = exchange.era
        self._finish(exchange, attempt, result)
        self._patience.note(time.monotonic() - began)
        return result

    def _try(self, exchange: Exchange, orders: Orders | None, attempt: Attempt, residual: Residual | None) -> Reduced:
        if attempt.whole or (orders is not None and orders.round == attempt.number and not orders.anew):
            return self._mend(exchange, orders, attempt)
        exchange.suspect_s = self._patience.seconds
        done = exchange.run(attempt.values, attempt.weight, self._way.patience_s, residual)
        return _reduced(done, _of_all(done))

    def _mend(self, exchange: Exchange, orders: Orders | None, attempt: Attempt) -> Reduced:
        """Fetch what others hold final of a round, and reduce among those who are left what nobody holds."""
        done = None
        if orders is not None and not attempt.whole:
            for peer, start, stop in orders.fetch:
                self._fetch(exchange, peer, attempt, start, stop)
            if orders.left:
                with self._changed:
                    packed, owed = attempt.pack(orders.left)
                exchange.suspect_s = self._patience.seconds
                done = exchange.run(packed, attempt.weight, self._way.patience_s, owed)
                with self._changed:
                    attempt.absorb(done.reduction.finals())
                    attempt.again()
        log.info("%s: round %d mended: %s", self._way.member, attempt.number, attempt.slices)
        slices = joined(attempt.slices)
        if done is not None:
            return replace(_reduced(done, slices), number=attempt.number)
        return Reduced(attempt.number, exchange.era, True, 0, 0, Tally(), slices)

    def _fetch(self, exchange: Exchange, peer: str, attempt: Attempt, start: int, stop: int) -> None:
        for at in range(start, stop, PIECE):
            end = min(at + PIECE, stop)
            ask = Ask(What.MEANS, exchange.era, attempt.number, at, end)
            most = (end - at) * attempt.values.element_size()
            try:
                answer = self._ask(peer, ask, most)
                means = torch.frombuffer(answer.data, dtype=attempt.values.dtype)
                slices = [slice_of(value) for value in answer.note["slices"]]
            except (SyncError, KeyError, TypeError, ValueError) as error:
                self._say_lost(exchange.era, Loss(peer, f"round {attempt.number}, epoch {exchange.era}: {error}"))
                raise _Unfetched from error
            with self._changed:
                attempt.put(at, means, slices)

    def _ask(self, peer: str, ask: Ask, most_bytes: int) -> Answer:
        way = self._way
        return fetch(self._roster[peer], way.secret, way.member, ask, most_bytes, way.patience_s)

    def _await_exchange(self, attempt: Attempt, barred: int) -> tuple[Exchange, Orders | None]:
        """The exchange in force, of another era than `barred`, and what the controller said when it began."""
        with self._changed:
            ready = self._changed.wait_for(
                lambda: self._failure or (self._halted is None and self._exchange.era != barred), self._way.patience_s
            )
            if self._failure is not None:
                raise self._failure
            if not ready:
                why = self._halted.why if self._halted else "what others hold can't be fetched"
                where = f"round {attempt.number}, epoch {self._exchange.era}"
                silence = f"the controller has not said within {self._way.patience_s:g} s who is left"
                raise SyncError(f"{where}: {why}; {silence}")
            return self._exchange, self._orders

    def _finish(self, exchange: Exchange, attempt: Attempt, done: Reduced) -> None:
        past = attempt.past() if attempt.slices else None
        retired = None
        with self._changed:
            self._finished = attempt.number
            self._attempt = None
            self._past = past or Past(attempt.number, done.slices, exchange.means_of(attempt.number))
            if exchange is self._exchange and self._halted is None:
                retired, self._before = self._before, None
                if exchange.agreed in self._next:
                    self._enter(exchange.agreed)
            self._changed.notify_all()
        if retired is not None:
            self._retire(retired, drain=True)

    def _enter(self, epoch: int) -> None:
        """Another era begins with the next round: all members of this one have agreed on it."""
        following, source = self._next.pop(epoch)
        following.start(self._finished)
        self._before, self._exchange, self._era = self._exchange, following, epoch
        self._orders = None
        self._source_of = epoch if source == self._way.member else None

    # -- a member is lost --------------------------------------------------------------------------------------------

    def halt(self, message: Halt) -> None:
        """Let nothing more become final, and say what is."""
        with self._changed:
            attempt = self._attempt
            if self._halted is None:
                epoch = self._exchange.era
                number, finals = self._exchange.freeze(Halted(f"epoch {epoch}: {message.why}"))
                if attempt is not None and attempt.number == number:
                    attempt.absorb(finals)
            self._halted = message
            holding = Holding(
                member=self._way.member,
                epoch=message.epoch,
                round=self._finished if attempt is None else attempt.number,
                over=attempt is None or attempt.whole,
                elements=0 if attempt is None else attempt.elements,
                final=() if attempt is None else attempt.final,
            )
        self._tell(holding)

    def resume(self, message: Resume) -> None:
        """Go on among those who are left. PlanError when the plan is none."""
        plan = Plan.from_json(message.plan)
        orders = orders_for(self._way.member, message.holdings)
        exchange = self._make(plan, message.roster, orders.round - orders.reduces, started=True)
        with self._changed:
            if self._halted is None or self._halted.epoch > plan.epoch:
                old = [exchange]  # another member was lost meanwhile
            else:
                old = [self._exchange, *(one for one, _ in self._next.values())]
                old += [self._before] if self._before else []
                self._before = None
                self._next = {}
                self._exchange, self._era = exchange, plan.epoch
                self._orders, self._halted = orders, None
                self._roster = dict(message.roster)
            self._changed.notify_all()
        for one in old:
            self._retire(one, drain=False)

    def _say_lost(self, era: int, loss: Loss) -> None:
        """Tell the controller, once of each."""
        said = era, loss.peer, loss.broken
        if era < self._era or (loss.broken and said in self._lost):
            return
        self._lost.add(said)
        self._tell(Lost(self._way.member, loss.peer, loss.why, loss.broken))

    # -- others ask --------------------------------------------------------------------------------------------------

    def receiver(self, hello: Greeting) -> Exchange:
        """The exchange of a peer's era, which this member may have yet to hear of; FrameError when there is none."""

        def found() -> Exchange | None:
            known = [self._exchange, *(one for one, _ in self._next.values())]
            known += [self._before] if self._before else []
            return next((one for one in known if one.era == hello.era), None)

        with self._changed:
            self._changed.wait_for(
                lambda: found() or self._failure or hello.era < self._exchange.era, self._way.patience_s
            )
            exchange = found()
        if exchange is None:
            raise FrameError(f"{hello.member} greets in era {hello.era}, which is not there")
        return exchange.receiver(hello)

    def serve(self, connection: socket.socket) -> None:
        """Answer a peer that asks for means or for the state."""
        connection.settimeout(self._way.patience_s)
        ask = receive_ask(connection)
        send_answer(connection, self._means(ask) if ask.what is What.MEANS else self._state_for(ask))

    def _means(self, ask: Ask) -> Answer:
        with self._changed:
            self._changed.wait_for(lambda: self._failure or self._held(ask) is not None, self._way.patience_s)
            held = self._held(ask)
        if held is None:
            return refusal(f"{self._way.member} does not hold [{ask.start}, {ask.stop}) of round {ask.round}")
        slices, means = held
        parts = [part for part in slices if part.start < ask.stop and ask.start < part.stop]
        note = {"slices": [_plain(part) for part in parts]}
        return Answer(note, memoryview(bytes(bytes_of(means))))

    def _held(self, ask: Ask) -> tuple[tuple[Slice, ...], torch.Tensor] | None:
        attempt, past = self._attempt, self._past
        if attempt is not None and attempt.number == ask.round:
            means = attempt.means(ask.start, ask.stop)
            return None if means is None else (attempt.slices, means)
        if past is not None and past.number == ask.round:
            return past.slices, past.means(ask.start, ask.stop)
        return None

    # -- a member comes ------------------------------------------------------------------------------------------------

    @property
    def wanted(self) -> int | None:
        """The era whose new member waits for this member's state; None when nobody does."""
        return self._source_of

    def offer(self, answer: Answer) -> None:
        """Hand this to who waits for the state."""
        with self._changed:
            if self._source_of is not None:
                self._state = self._source_of, answer
            self._source_of = None
            self._changed.notify_all()

    def ask_state(self, source: str, most_bytes: int) -> Answer:
        """The state that `source` hands over; SyncError when it can't be had."""
        return self._ask(source, Ask(What.STATE, self._exchange.era), most_bytes)

    def _state_for(self, ask: Ask) -> Answer:
        with self._changed:
            self._changed.wait_for(
                lambda: self._failure or (self._state is not None and self._state[0] >= ask.epoch), self._way.patience_s
            )
            state = self._state
        if state is None or state[0] != ask.epoch:
            return refusal(f"{self._way.member} has no state of epoch {ask.epoch} to hand over")
        return state[1]

    # -- ends ------------------------------------------------------------------------------------------------------

    def fail(self, error: SyncError) -> None:
        """End the round that is on, and every later one, with an error; the first one counts."""
        with self._changed:
            if self._failure is None:
                self._failure = error
            self._exchange.fail(error)
            self._changed.notify_all()

    def samples(self) -> tuple[PeerSample, ...]:
        """What each next hop's path did since the last call."""
        return self._exchange.samples()

    def probe(self, peer: str, most: int, seconds: float) -> None:
        """Send a peer what means nothing for `seconds`, at most `most` bytes; returns at once."""
        self._exchange.probe(peer, most, seconds)

    def sending_s(self) -> float:
        """Seconds that all connections together have spent in sending since they began."""
        return self._exchange.sending_s()

    def drain(self) -> None:
        """Wait until the peers have read all that was sent to them, then close the connections to them."""
        self._exchange.drain(self._way.patience_s)

    def close(self) -> None:
        """Close the connections to peers at once, and let go of who waits."""
        self.fail(SyncError("the session is closed"))
        with self._changed:
            left = [self._exchange, *(one for one, _ in self._next.values())]
            left += [self._before] if self._before else []
        for exchange in left:
            exchange.close()
        for thread in self._retiring:
            thread.join(CLOSE_S)

    def _retire(self, exchange: Exchange, drain: bool) -> None:
        """Have done with an era's exchange, on a thread of its own: its peers may be dead."""

        def end() -> None:
            if drain:
                exchange.drain(self._way.patience_s)
            exchange.close()

        thread = threading.Thread(target=end, name=f"retire era {exchange.era}", daemon=True)
        self._retiring = [one for one in self._retiring if one.is_alive()] + [thread]
        thread.start()

    def _make(self, plan: Plan, roster: Roster, after_round: int, started: bool) -> Exchange:
        way = replace(self._way, era=plan.epoch)

        def lost(loss: Loss) -> None:
            self._say_lost(plan.epoch, loss)

        on_lost = lost if self._elastic else None
        return Exchange(plan, way, roster, after_round, self._reproducible, on_lost, started)


class _Unfetched(Exception):
    """What another member holds can't be had from it; the controller was told."""


def _reduced(done: Round, slices: tuple[Slice, ...]) -> Reduced:
    reduction = done.reduction
    lost, duplicated = reduction.lost.bit_count(), reduction.duplicated.bit_count()
    return Reduced(done.number, done.epoch, done.among_all, lost, duplicated, done.tally, slices)


def _of_all(done: Round) -> tuple[Slice, ...]:
    part = done.reduction.made_of(0)
    return (Slice(0, done.shape[0], tuple(done.reduction.names(part.contributors)), part.weight),)


def _plain(part: Slice) -> dict[str, object]:
    return {"start": part.start, "stop": part.stop, "members": part.members, "weight": part.weight}
